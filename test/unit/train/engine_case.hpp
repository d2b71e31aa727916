#pragma once
// A small training run with tokens that are a function of the global sample, for tests of the
// engine on one rank and on several.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "choir/comm/mesh/mesh.hpp"
#include "choir/core/philox.hpp"
#include "choir/nn/parameter.hpp"
#include "choir/ops/step_control.hpp"
#include "kernels/cpu/ref_element.hpp"
#include "src/device/cpu_device.hpp"
#include "src/models/gpt/gpt_config.hpp"
#include "src/train/step/engine.hpp"
#include "src/train/step/step_planner.hpp"

namespace choir::test {

inline GptConfig tiny_gpt() {
  return {.vocab_size = 19,
          .block_size = 8,
          .n_layer = 2,
          .n_head = 4,
          .n_kv_head = 4,
          .n_embd = 32,
          .ffn_width = 64};
}

inline GptConfig tiny_llama() {
  GptConfig c = tiny_gpt();
  c.n_kv_head = 2;
  c.bias = false;
  c.tied = false;
  c.norm = ops::Norm::rmsnorm;
  c.activation = ops::Activation::swiglu;
  c.position = Position::rope;
  return c;
}

inline GptConfig with_dropout(GptConfig c, double rate = 0.2) {
  c.dropout = rate;
  return c;
}

/// `micro_batches`: number per rank.
inline EngineOptions engine_options(const GptConfig& model, const char* precision,
                                    std::int64_t micro_batches, bool reproducible = false) {
  EngineOptions options;
  options.model = model;
  options.precision = precision_of(precision);
  options.seed = 1337;
  options.reproducible = reproducible;
  options.micro_batch_size = 2;
  options.micro_batches = micro_batches;
  options.schedule = {.kind = LrSchedule::Kind::cosine,
                      .peak = 3e-3,
                      .floor = 3e-4,
                      .warmup_steps = 4,
                      .decay_steps = 20};
  if (std::string_view(precision) == "fp16-mixed")
    options.loss_scaling = {.start = 65536, .window = 2000};
  return options;
}

/// Position p of sample s: inputs are positions 0..T-1, targets 1..T.
inline std::int32_t token_at(std::int64_t sample, std::int64_t position, std::int64_t vocabulary) {
  const PhiloxBlock word = philox_at(philox_key(5, "tokens"), static_cast<std::uint64_t>(sample),
                                     static_cast<std::uint64_t>(position));
  return static_cast<std::int32_t>(word[0] % static_cast<std::uint32_t>(vocabulary));
}

/// The control of one update in host memory, as end_step() leaves it after `updates` - 1 others.
inline ops::StepControl applied(double updates, double learning_rate, double factor, double beta1,
                                double beta2) {
  return {.learning_rate = learning_rate,
          .apply = 1,
          .gradient_factor = factor,
          .correction1 = 1 - std::pow(beta1, updates),
          .correction2 = 1 - std::pow(beta2, updates),
          .updates = updates};
}

/// An engine on this rank of a mesh, and its batches.
class EngineRun {
 public:
  EngineRun(const EngineOptions& options, Mesh& mesh, std::size_t more_arena = 0)
      : EngineRun(options, mesh, std::make_unique<CpuDevice>(), more_arena) {}
  EngineRun(const EngineOptions& options, Mesh& mesh, std::unique_ptr<Device> device,
            std::size_t more_arena = 0)
      : device_(std::move(device)),
        plan_(plan_step(options, mesh.layout(), mesh.rank(), mesh.node().size(), false,
                        device_.get())),
        engine_(std::make_unique<Engine>(options, *device_, mesh, plan_.arena_bytes + more_arena)),
        inputs_(cells(options)),
        targets_(inputs_.size()) {
    engine_->instance().initialise(options.seed);
  }

  Engine& engine() { return *engine_; }
  /// Ends the use of steps: its graphs are destroyed, because NCCL would wait for them. Then the
  /// mesh may be destroyed, and at last the device.
  void end() { engine_.reset(); }
  const StepPlan& plan() const { return plan_; }
  Mesh& mesh() { return engine_->mesh(); }
  PhaseClock& clock() { return clock_; }

  /// Tokens of one global batch.
  double tokens_of_step() {
    return static_cast<double>(inputs_.size()) *
           static_cast<double>(engine_->options().micro_batches * data_ranks());
  }
  int data_ranks() { return mesh().along(Axis::data).size(); }

  ModelBatch batch(std::int64_t micro_batch) {
    const EngineOptions& o = engine_->options();
    const std::int64_t first = micro_batch * o.micro_batch_size;
    for (std::size_t i = 0; i < inputs_.size(); ++i) {
      const std::int64_t sample =
          first + static_cast<std::int64_t>(i) / o.model.as<GptConfig>().block_size;
      const std::int64_t position =
          static_cast<std::int64_t>(i) % o.model.as<GptConfig>().block_size;
      inputs_[i] = token_at(sample, position, o.model.as<GptConfig>().vocab_size);
      targets_[i] = token_at(sample, position + 1, o.model.as<GptConfig>().vocab_size);
    }
    const Shape shape{static_cast<std::int64_t>(inputs_.size())};
    return token_batch(o.micro_batch_size, {inputs_.data(), DType::i32, shape},
                       {targets_.data(), DType::i32, shape}, first);
  }

  /// The next step, and its result; collective. NaN `tokens` make the loss NaN.
  StepResult step() { return step(tokens_of_step()); }
  StepResult step(double tokens) {
    queue(tokens);
    return engine_->finish(clock_);
  }
  void queue(double tokens) {
    const auto batch_of = [this](std::int64_t j) {
      return batch(engine_->micro_batch_index(step_, j));
    };
    engine_->step(step_, batch_of, tokens, clock_);
    ++step_;
  }
  /// Number of steps queued so far; a run that continues another one begins with the number of that
  /// run.
  std::int64_t steps() const { return step_; }
  void start_at(std::int64_t step) { step_ = step; }
  std::vector<double> losses(int steps) {
    std::vector<double> list;
    for (int i = 0; i < steps; ++i) list.push_back(step().loss);
    return list;
  }

  /// Masters and moments of all parameters, one after another, without padding, as logical tensors.
  /// Collective over the tensor axis, like gradients(), and over data ranks if they own slices.
  std::vector<double> state() {
    ModelInstance& instance = engine_->instance();
    const ParameterStorage& storage = instance.storage();
    std::vector<double> all;
    const bool offloaded = storage.offloaded() != nullptr;
    const auto append_of = [&](const Parameter& first, const auto& own, bool outside) {
      append(
          first, own, [&](const Parameter& p) { return storage.owned(p); }, all, outside);
    };
    for (const Parameter& first : instance.parameters().parameters()) {
      if (first.packed) continue;  // it has no master
      append_of(
          first,
          [&](const Parameter& p) {
            return storage.owned_part(storage.masters(storage.bucket_of(p)), p);
          },
          storage.masters_outside(storage.bucket_of(first)));
      if (!first.trainable) continue;
      for (std::size_t i = 0; i < engine_->optimizer().moment_names().size(); ++i)
        if (engine_->optimizer().keeps(i, first))
          append_of(
              first, [&](const Parameter& p) { return engine_->optimizer().moment(i, p); },
              offloaded);
    }
    return storage.sharding().slices() > 1 ? of_group(storage.sharding(), all) : all;
  }
  /// Valid on stage 0 only.
  std::vector<double> gradients() {
    std::vector<double> all;
    for (const Parameter& p : engine_->instance().parameters().parameters())
      append(
          p, [](const Parameter& tile) { return tile.gradient; },
          [](const Parameter& tile) {
            return Range{0, tile.local_count()};
          },
          all);
    return all;
  }

 private:
  static std::size_t cells(const EngineOptions& o) {
    return static_cast<std::size_t>(o.micro_batch_size * o.model.as<GptConfig>().block_size);
  }
  // Adds up the logical tensor of `first` with its tiles. view(p) gives elements range(p) of the
  // part of p on this rank. Every element comes from the rank that owns it.
  template <class ViewOf, class RangeOf>
  void append(const Parameter& first, const ViewOf& view_of, const RangeOf& range_of,
              std::vector<double>& all, bool outside = false) {
    if (first.shard.tile > 0) return;
    std::vector<double> logical(static_cast<std::size_t>(first.count()), 0.0);
    for (const Parameter* p = &first; p != nullptr; p = p->next_tile) {
      const TensorView view = view_of(*p);
      const Range range = range_of(*p);
      std::vector<std::byte> host(view.bytes());
      if (!host.empty() && outside) device_->synchronize(device_->main_stream());
      if (!host.empty() && outside) std::memcpy(host.data(), view.data, host.size());
      if (!host.empty() && !outside) device_->copy_to_host(host.data(), view.data, host.size());
      for (const ShardRun& run : shard_runs(*p)) {
        const Range here = overlap({run.local, run.count}, range);
        for (std::int64_t i = here.first; run.owned && i < here.end(); ++i)
          logical[static_cast<std::size_t>(run.logical + i - run.local)] =
              ref::load(host.data(), view.dtype, i - range.first);
      }
    }
    add_up(mesh().host_along(Axis::tensor), logical);
    all.insert(all.end(), logical.begin(), logical.end());
  }
  /// Adds up the parts that the ranks of this rank's group hold. Host memory is communicated by
  /// host communicators only, and groups have none: all replicas add, each group in a block of its
  /// own.
  std::vector<double> of_group(const Sharding& sharding, const std::vector<double>& parts) {
    const std::size_t size = parts.size();
    std::vector<double> groups(size * static_cast<std::size_t>(sharding.replica_count()));
    const auto mine = groups.begin() + sharding.replica() * static_cast<std::ptrdiff_t>(size);
    std::copy(parts.begin(), parts.end(), mine);
    add_up(mesh().host_replicas(), groups);
    return {mine, mine + static_cast<std::ptrdiff_t>(size)};
  }
  // The values are added as integers, so that adding zeros keeps every bit.
  static void add_up(Communicator& ranks, std::vector<double>& all) {
    if (ranks.size() > 1) ranks.all_reduce(all.data(), all.size(), DType::i64, ReduceOp::sum);
  }

  std::unique_ptr<Device> device_;
  StepPlan plan_;
  std::unique_ptr<Engine> engine_;
  std::vector<std::int32_t> inputs_, targets_;
  PhaseClock clock_;
  std::int64_t step_ = 0;
};

/// A single rank without MPI.
struct SingleRank {
  std::unique_ptr<Mesh> mesh = Mesh::planned(Layout(), 0, 1);
};

/// max|a-b| / max(1, max|a|); infinity if the sizes differ or a number is NaN.
inline double distance(const std::vector<double>& a, const std::vector<double>& b) {
  if (a.size() != b.size()) return INFINITY;
  double largest = 1, worst = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    largest = std::max(largest, std::abs(a[i]));
    const double d = std::abs(a[i] - b[i]);
    if (!(d <= worst)) worst = std::isnan(d) ? INFINITY : d;
  }
  return worst / largest;
}

/// Compares bits, so that NaN equals NaN of the same bits.
inline bool same_bits(const std::vector<double>& a, const std::vector<double>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(double)) == 0;
}

}  // namespace choir::test
