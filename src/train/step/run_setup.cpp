#include "src/train/step/run_setup.hpp"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <map>
#include <string>

#include "choir/models/family.hpp"
#include "src/nn/axes/context_axis.hpp"

namespace choir {

MeshOptions mesh_options_of(const Deck& deck) {
  MeshOptions options;
  if (deck.parallel.transport == "mpi") options.transport = Transport::mpi;
  if (deck.parallel.transport == "node") options.transport = Transport::node;
  constexpr double kLater = 30;
  const WatchSection& watch = deck.watch;
  const double longest = std::max(
      {deck.parallel.timeout, watch.start, watch.first_step, watch.save, watch.evaluation});
  options.timeout_seconds = longest + std::min(longest, kLater);
  return options;
}

ZeroOptions zero_of(const Deck& deck) {
  const ParallelSection& p = deck.parallel;
  const int group = p.zero_group == "all"    ? ZeroOptions::kAll
                    : p.zero_group == "node" ? ZeroOptions::kNode
                                             : std::stoi(p.zero_group);
  return {.stage = p.zero, .group = group, .prefetch = p.zero_prefetch};
}

OffloadOptions offload_of(const Deck& deck) {
  const ParallelSection& p = deck.parallel;
  if (p.offload == "none") return {};
  if (p.offload != "file") return {.place = MemoryPlace::host, .parameters = p.offload == "all"};
  const char* const temporary = std::getenv("TMPDIR");
  const std::string usual = temporary != nullptr && *temporary != 0 ? temporary : "/tmp";
  return {.place = MemoryPlace::file, .directory = p.offload_dir.empty() ? usual : p.offload_dir};
}

PipelineOptions pipeline_of(const Deck& deck) {
  static const std::map<std::string, ScheduleKind> kKinds{
      {"gpipe", ScheduleKind::gpipe},
      {"1f1b", ScheduleKind::one_f_one_b},
      {"interleaved", ScheduleKind::interleaved},
      {"zb-h1", ScheduleKind::zb_h1}};
  return {.schedule = kKinds.at(deck.parallel.schedule),
          .virtual_stages = deck.parallel.virtual_stages};
}

LrSchedule schedule_of(const Deck& deck, int data_parallel) {
  static const std::map<std::string, LrSchedule::Kind> kKinds{
      {"constant", LrSchedule::Kind::constant},
      {"cosine", LrSchedule::Kind::cosine},
      {"linear", LrSchedule::Kind::linear},
      {"inverse_sqrt", LrSchedule::Kind::inverse_sqrt}};
  const OptimizerSection& o = deck.optimizer;
  double factor = 1;
  if (o.scale_lr == "sqrt") factor = std::sqrt(data_parallel);
  if (o.scale_lr == "linear") factor = data_parallel;
  return {.kind = kKinds.at(o.schedule),
          .peak = o.learning_rate * factor,
          .floor = o.min_lr * factor,
          .warmup_steps = o.warmup_steps,
          .decay_steps = o.decay_steps};
}

ops::LossScaling loss_scaling_of(const Deck& deck) {
  constexpr double kFirstScale = 65536;
  const TrainSection& train = deck.train;
  if (train.precision != "fp16-mixed") return {};
  if (train.loss_scale > 0) return {.start = static_cast<double>(train.loss_scale), .window = 0};
  return {.start = kFirstScale, .window = static_cast<double>(train.loss_scale_window)};
}

namespace {

Recompute recompute_of(const std::string& name) {
  if (name == "selective") return Recompute::selective;
  return name == "full" ? Recompute::full : Recompute::none;
}

}  // namespace

ModelConfig model_of(const Deck& deck) {
  ModelConfig model = deck.family().model(deck);
  model.set_recompute(recompute_of(deck.train.recompute));
  return model;
}

ContextWay context_way_of(const Deck& deck) {
  const ParallelSection& p = deck.parallel;
  return context_way_of(p.context_mode,
                        deck.family().query_heads(deck.family().model(deck)) / p.tensor, p.context);
}

Precision precision_of(const Deck& deck) {
  const Precision precision = precision_of(deck.train.precision);
  return deck.train.frozen_precision == "master" ? precision : with_narrow_frozen(precision);
}

EngineOptions engine_options(const Deck& deck, const BatchSizes& batch) {
  const OptimizerSection& o = deck.optimizer;
  EngineOptions options;
  options.model = model_of(deck);
  options.precision = precision_of(deck);
  options.seed = static_cast<std::uint64_t>(deck.run.seed);
  options.sequence = deck.parallel.sequence;
  options.context = context_way_of(deck);
  options.reproducible = deck.train.reproducible;
  options.zero = zero_of(deck);
  options.pipeline = pipeline_of(deck);
  options.offload = offload_of(deck);
  options.freezing = {.freeze = deck.train.freeze, .unfreeze = deck.train.unfreeze};
  if (deck.parallel.pipeline > 1)
    options.pipeline.forward_only = units_without_backward(options.freezing, options.model);
  options.micro_batch_size = batch.micro;
  options.micro_batches = batch.accum;
  options.optimizer = {.beta1 = o.beta1,
                       .beta2 = o.beta2,
                       .epsilon = o.epsilon,
                       .weight_decay = o.weight_decay,
                       .rule = update_rule_of(o.name),
                       .momentum = o.momentum,
                       .trust_coefficient = o.trust_coefficient};
  options.offload.second_moment = options.optimizer.rule == UpdateRule::adamw;
  for (const auto& [pattern, factor] : rate_factors(o.scale))
    options.rate_scales.push_back({pattern, factor});
  options.schedule = schedule_of(deck, batch.data_parallel);
  options.grad_clip = o.grad_clip;
  options.loss_scaling = loss_scaling_of(deck);
  options.cuda_graph = deck.train.cuda_graph;
  options.lag = deck.train.steps_in_flight - 1;
  return options;
}

void resolve_vocabulary(Deck& deck, std::int64_t data_vocabulary, const std::string& data_name) {
  std::int64_t& size = deck.family().vocab_size(deck);
  const std::string key = deck.family().vocab_size_key();
  if (size == 0 && data_vocabulary == 0)
    throw DeckError(key + " is 0 and the data does not specify the size of its vocabulary",
                    fmt::format("set {} (GPT-2: 50257)", key));
  if (size == 0) {
    size = data_vocabulary;
    deck.mark_derived(key);
  }
  if (data_vocabulary > size)
    throw DataError(
        fmt::format("{} is {}, but {} has {} symbols", key, size, data_name, data_vocabulary),
        fmt::format("leave {} out to take it from the data", key));
}

}  // namespace choir
