#include <fmt/core.h>

#include <algorithm>
#include <vector>

#include "choir/ops/attention.hpp"
#include "deck_tables.hpp"
#include "nearest_legal.hpp"

namespace choir {
namespace {

/// The fewest heads that divide n_embd and are not too wide.
std::int64_t heads_from(const GptConfig& gpt) {
  std::int64_t heads = (gpt.n_embd + ops::kWidestHead - 1) / ops::kWidestHead;
  while (gpt.n_embd % heads != 0) ++heads;
  return heads;
}

class Checks {
 public:
  explicit Checks(const Deck& deck) : deck_(deck) {}

  void add(std::vector<std::string> keys, std::string text) {
    problems_.push_back({std::move(keys), std::move(text)});
  }

  void batch() {
    const TrainSection& train = deck_.train;
    const std::vector<std::string> keys{"train.micro_batch_size", "train.global_batch_size",
                                        "train.grad_accum"};
    constexpr std::int64_t kMostTokens = std::int64_t{1} << 31;
    if (train.micro_batch_size >= kMostTokens / deck_.model.gpt.block_size)
      add({"train.micro_batch_size", "model.block_size"},
          fmt::format("train.micro_batch_size = {} x model.block_size = {} is too much for one "
                      "pass; legal: fewer than {} tokens",
                      train.micro_batch_size, deck_.model.gpt.block_size, kMostTokens));
    try {  // what no number of ranks could mend
      if ((train.micro_batch_size > 0) + (train.grad_accum > 0) + (train.global_batch_size > 0) < 2)
        resolve_batch_sizes(train.micro_batch_size, train.grad_accum, train.global_batch_size, 1);
      if (train.micro_batch_size > 0 && train.global_batch_size > 0)
        resolve_batch_sizes(train.micro_batch_size, 0, train.global_batch_size, 1);
      if (train.grad_accum > 0 && train.global_batch_size > 0)
        resolve_batch_sizes(0, train.grad_accum, train.global_batch_size, 1);
    } catch (const DeckError& error) {
      add(keys, fmt::format("{}; {}", error.what(), error.hint()));
    }
  }

  void data() {
    const DataSection& data = deck_.data;
    const bool synthetic = data.format == "synthetic";
    if (!synthetic && data.train.empty())
      add({"data.train"},
          "data.train is not given: name files or folders, or set data.format = "
          "\"synthetic\" for random tokens");
    if (synthetic && !(data.train.empty() && data.val.empty()))
      add({"data.train", "data.val", "data.format"},
          "data.format = \"synthetic\" reads nothing, but data.train or data.val name files; "
          "remove one");
    if (synthetic && deck_.model.gpt.vocab_size == 0)
      add({"model.vocab_size", "data.format"},
          "data.format = \"synthetic\" needs model.vocab_size, for example 50257");
    if (data.readers_every > 0 && data.reader != "scatter")
      add({"data.readers_every", "data.reader"},
          fmt::format("data.readers_every = {} is for data.reader = \"scatter\", not \"{}\"",
                      data.readers_every, data.reader));
  }

  void schedule() {
    const OptimizerSection& optimizer = deck_.optimizer;
    if (optimizer.min_lr > optimizer.learning_rate)
      add({"optimizer.min_lr", "optimizer.learning_rate"},
          fmt::format(
              "optimizer.min_lr = {} is above optimizer.learning_rate = {}; legal: 0 <= min_lr "
              "<= {}",
              optimizer.min_lr, optimizer.learning_rate, optimizer.learning_rate));
    if (optimizer.decay_steps > 0 && optimizer.warmup_steps > optimizer.decay_steps)
      add({"optimizer.warmup_steps", "optimizer.decay_steps"},
          fmt::format(
              "optimizer.warmup_steps = {} is above optimizer.decay_steps = {}; nearest legal: {}",
              optimizer.warmup_steps, optimizer.decay_steps, optimizer.decay_steps));
    const std::int64_t last = profile_range(deck_.train.profile).last;
    if (last > deck_.train.max_steps)
      add({"train.profile", "train.max_steps"},
          fmt::format("train.profile ends at step {}, after train.max_steps = {}", last,
                      deck_.train.max_steps));
    const RunSection& run = deck_.run;
    if (run.walltime > 0 && run.walltime_margin >= run.walltime)
      add({"run.walltime", "run.walltime_margin"},
          fmt::format("run.walltime = {} leaves no time to train: run.walltime_margin is {}",
                      format_hms(run.walltime), format_hms(run.walltime_margin)));
  }

  void freezing() {
    const TrainSection& train = deck_.train;
    if (train.freeze.empty() && !train.unfreeze.empty())
      add({"train.unfreeze", "train.freeze"},
          "train.unfreeze takes back from train.freeze, which is not given");
  }

  void warm_start() {
    const CheckpointSection& checkpoint = deck_.checkpoint;
    if (!checkpoint.init_from.empty()) return;
    for (const auto& [key, patterns] : {std::pair("init_take", &checkpoint.init_take),
                                        std::pair("init_skip", &checkpoint.init_skip)})
      if (!patterns->empty())
        add({std::string("checkpoint.") + key, "checkpoint.init_from"},
            fmt::format("checkpoint.{} chooses from checkpoint.init_from, which is not given",
                        key));
  }

  void device() {
    const std::string& transport = deck_.parallel.transport;
    if (deck_.device == "cuda" && deck_.train.precision == "fp64")
      add({"device", "train.precision"},
          "device = \"cuda\" does not compute in train.precision = \"fp64\", which stays on the "
          "CPU; set device = \"cpu\", or another precision");
    if (deck_.device == "cpu" && (transport == "nccl" || transport == "staged"))
      add({"parallel.transport", "device"},
          fmt::format("parallel.transport = \"{}\" is for memory of GPUs, not for device = "
                      "\"cpu\"; legal there: auto, mpi, node",
                      transport));
    if (deck_.device == "cpu" && deck_.parallel.share_device)
      add({"parallel.share_device", "device"},
          "parallel.share_device is for device = \"cuda\", not \"cpu\"; remove one");
  }

  void precision() {
    const TrainSection defaults;
    const TrainSection& train = deck_.train;
    const bool fp16 = train.precision == "fp16-mixed";
    if (train.loss_scale != defaults.loss_scale && !fp16)
      add({"train.loss_scale", "train.precision"},
          fmt::format("train.loss_scale = {} is for train.precision = \"fp16-mixed\", not \"{}\": "
                      "the others have the range of fp32",
                      train.loss_scale, train.precision));
    if (train.loss_scale_window != defaults.loss_scale_window && (!fp16 || train.loss_scale > 0))
      add({"train.loss_scale_window", "train.loss_scale", "train.precision"},
          fmt::format("train.loss_scale_window = {} is for train.precision = \"fp16-mixed\" with "
                      "train.loss_scale = \"dynamic\"",
                      train.loss_scale_window));
  }

  std::vector<KeyProblem> take() { return std::move(problems_); }

 private:
  const Deck& deck_;
  std::vector<KeyProblem> problems_;
};

}  // namespace

std::int64_t default_ffn_width(const GptConfig& gpt) {
  if (gpt.activation != ops::Activation::swiglu) return 4 * gpt.n_embd;
  return (8 * gpt.n_embd + 3 * 64 - 1) / (3 * 64) * 64;
}

std::vector<KeyProblem> check_model(const GptConfig& gpt) {
  std::vector<KeyProblem> problems;
  if (gpt.n_embd % gpt.n_head != 0) {
    problems.push_back(
        {{"model.n_embd", "model.n_head"},
         fmt::format(
             "model.n_embd = {} is not a multiple of model.n_head = {}; nearest legal: n_embd = "
             "{}, or n_head = {}",
             gpt.n_embd, gpt.n_head, multiples_around(gpt.n_embd, gpt.n_head),
             divisors_around(gpt.n_embd, gpt.n_head))});
  } else if (gpt.head_width() > ops::kWidestHead) {
    problems.push_back(
        {{"model.n_embd", "model.n_head"},
         fmt::format("a head is model.n_embd / model.n_head = {} wide, at most {} is supported; "
                     "nearest legal: n_head = {}",
                     gpt.head_width(), ops::kWidestHead, heads_from(gpt))});
  } else if (gpt.position == Position::rope && gpt.head_width() % 2 != 0) {
    problems.push_back(
        {{"model.n_embd", "model.n_head", "model.position"},
         fmt::format(
             "model.position = \"rope\" rotates pairs, but a head is model.n_embd / model.n_head = "
             "{} wide; nearest legal: n_embd = {}",
             gpt.head_width(), multiples_around(gpt.n_embd, 2 * gpt.n_head))});
  }
  if (gpt.n_kv_head != 0 && gpt.n_head % gpt.n_kv_head != 0)
    problems.push_back(
        {{"model.n_kv_head", "model.n_head"},
         fmt::format("model.n_kv_head = {} does not divide model.n_head = {}; nearest legal: {}",
                     gpt.n_kv_head, gpt.n_head, divisors_around(gpt.n_head, gpt.n_kv_head))});
  return problems;
}

std::vector<KeyProblem> deck::check(const Deck& deck) {
  Checks checks(deck);
  const auto add = [&](std::vector<KeyProblem> problems) {
    for (KeyProblem& problem : problems)
      checks.add(std::move(problem.keys), std::move(problem.text));
  };
  const bool speech = deck.model.speech();
  add(deck::check_kind(deck));
  add(speech ? deck::check_speech(deck) : check_model(deck.model.gpt));
  if (speech) add(deck::check_speech_data(deck));
  add(deck::check_parallel(deck));
  if (!speech) checks.batch();
  if (!speech) checks.data();
  checks.schedule();
  checks.freezing();
  checks.warm_start();
  checks.precision();
  checks.device();
  add(deck::check_faults(deck));
  return checks.take();
}

}  // namespace choir
