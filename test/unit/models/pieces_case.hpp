#pragma once
// A model cut into pieces, all stages in one process, each with its own parameters and memory;
// tensors between them are copied by hand. Stages check that their model keeps its promises about
// buckets: values exist between acquire and release only, and gradients change between
// begin_gradients and gradients_ready only.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "kernels/sums/sums.hpp"
#include "src/models/gpt/gpt.hpp"
#include "test/unit/train/engine_case.hpp"

namespace choir::test {

/// Piece k is held by stage k % stages.
struct PieceCut {
  std::vector<UnitRange> pieces;
  int stages = 1;
  bool separate_tied = false;
};

inline PieceCut uncut(const GptConfig& config, bool separate_tied = false) {
  return {{{0, static_cast<int>(config.n_layer) + 2}}, 1, separate_tied};
}

/// All divisions of the units of a model into `parts` pieces.
inline std::vector<std::vector<UnitRange>> cuts(int units, int parts, int first = 0) {
  if (parts == 1) return {{{first, units - first}}};
  std::vector<std::vector<UnitRange>> list;
  for (int count = 1; first + count + parts - 1 <= units; ++count)
    for (auto& rest : cuts(units, parts - 1, first + count)) {
      list.push_back({{first, count}});
      list.back().insert(list.back().end(), rest.begin(), rest.end());
    }
  return list;
}

inline std::string to_string(const PieceCut& cut) {
  std::string text = std::to_string(cut.stages) + " stages, units";
  for (const UnitRange& piece : cut.pieces) text += " " + std::to_string(piece.count);
  return text + (cut.separate_tied ? ", separate" : "");
}

class Stage final : public BucketHooks {
 public:
  Stage(const GptConfig& config, const Precision& precision, const ModelCut& cut, int micro_batches,
        const TensorAxis& tensor)
      : parameters_(TensorSplit{tensor.rank(), tensor.size(), tensor.sequence}),
        model_(config, parameters_, cut),
        precision_(precision) {
    parameters_.place(1);
    const auto bytes = [&](DType type) {
      return static_cast<std::size_t>(parameters_.flat_size()) * size_of(type);
    };
    masters_ = Buffer(device_, bytes(precision.master));
    values_ = Buffer(device_, bytes(precision.compute));
    gradients_ = Buffer(device_, bytes(precision.gradient));
    for (const Buffer* buffer : {&masters_, &values_, &gradients_})
      std::memset(buffer->data(), 0, buffer->bytes());
    parameters_.bind(precision, values_.data(), masters_.data(), gradients_.data());
    users_.resize(parameters_.buckets().size());
    open_.resize(users_.size());
    said_.resize(users_.size());
    initialise();
    for (const Bucket& bucket : parameters_.buckets())
      for (Parameter* p : bucket.parameters) p->value.data = nullptr;
    for (int i = 0; i < micro_batches; ++i) {
      passes_.push_back(std::make_unique<Pass>(Stream(device_), arena_, precision, 7, tensor));
      passes_.back()->set_hooks(*this);
    }
    table_ = Buffer(device_, model_.table_bytes(precision));
    model_.prepare(*passes_.front(), table_.data());
  }

  Gpt& model() { return model_; }
  ParameterSet& parameters() { return parameters_; }
  Arena& arena() { return arena_; }
  Pass& pass(int micro_batch) { return *passes_[static_cast<std::size_t>(micro_batch)]; }
  /// Buckets in the order in which their gradients were reported ready.
  const std::vector<int>& ready() const { return ready_; }

  /// The gradients contain numbers of another step: the first contribution has to overwrite them.
  void begin_step() {
    const Stream stream(device_);
    for (Parameter& p : parameters_.parameters()) {
      p.gradient_live = !p.gradient_overwritten;
      if (p.gradient_overwritten)
        std::memset(p.gradient.data, 0x41, p.gradient.bytes());
      else
        ops::zero(stream, p.gradient);
    }
    for (std::size_t b = 0; b < said_.size(); ++b) note(b);
  }

  void acquire(int bucket) override {
    if (users_.at(static_cast<std::size_t>(bucket))++ == 0) bind(bucket, values_.data());
  }
  void release(int bucket) override {
    const int left = --users_.at(static_cast<std::size_t>(bucket));
    EXPECT_GE(left, 0) << "bucket " << bucket;
    if (left == 0) bind(bucket, nullptr);
  }
  void begin_gradients(int bucket) override {
    const auto b = static_cast<std::size_t>(bucket);
    EXPECT_FALSE(open_.at(b)) << "bucket " << bucket << " begins twice";
    EXPECT_TRUE(unchanged(b)) << "written before it was said, bucket " << bucket;
    open_[b] = true;
  }
  void gradients_ready(int bucket) override {
    const auto b = static_cast<std::size_t>(bucket);
    EXPECT_TRUE(open_.at(b)) << "bucket " << bucket << " is ready and never began";
    open_[b] = false;
    note(b);
    ready_.push_back(bucket);
  }
  /// Checks that no memory was written without a report.
  void check() const {
    for (std::size_t b = 0; b < said_.size(); ++b) {
      EXPECT_TRUE(open_[b] || unchanged(b)) << "written after it was ready, " << b;
    }
  }
  void check_idle() const {
    for (std::size_t b = 0; b < said_.size(); ++b) {
      EXPECT_EQ(users_[b], 0) << "bucket " << b << " is not released";
      EXPECT_FALSE(open_[b]) << "bucket " << b << " never became ready";
    }
    EXPECT_EQ(arena_.live(), 0u) << "tensors leaked";
  }

 private:
  using Bytes = std::vector<std::byte>;
  TensorView gradients_of(std::size_t b) const {
    const Bucket& bucket = parameters_.buckets()[b];
    const std::size_t first = static_cast<std::size_t>(bucket.offset);
    return {static_cast<std::byte*>(gradients_.data()) + first * size_of(precision_.gradient),
            precision_.gradient,
            {bucket.size}};
  }
  void note(std::size_t b) {
    const TensorView now = gradients_of(b);
    const auto* first = static_cast<const std::byte*>(now.data);
    said_[b].assign(first, first + now.bytes());
  }
  bool unchanged(std::size_t b) const {
    return std::memcmp(gradients_of(b).data, said_[b].data(), said_[b].size()) == 0;
  }
  void bind(int index, void* flat) {
    const Bucket& bucket = parameters_.buckets()[static_cast<std::size_t>(index)];
    for (Parameter* p : bucket.parameters)
      p->value.data = flat == nullptr ? nullptr
                                      : static_cast<std::byte*>(flat) +
                                            static_cast<std::size_t>(bucket.offset + p->offset) *
                                                size_of(precision_.compute);
  }
  // Parameters differ from the symmetric start: norms not 1, biases not 0, larger weights.
  void initialise() {
    for (Parameter& p : parameters_.parameters()) {
      choir::initialise(p, 7, p.master);
      const PhiloxKey key = philox_key(3, p.tied_to ? p.tied_to->name : p.name);
      for (const ShardRun& run : shard_runs(p))
        for (std::int64_t i = 0; i < run.count; ++i) {
          const double more = 0.2 * normal_at(key, static_cast<std::uint64_t>(run.logical + i));
          if (p.master.dtype == DType::f64)
            p.master.as<double>()[run.local + i] += more;
          else
            p.master.as<float>()[run.local + i] += static_cast<float>(more);
        }
      ops::cast(Stream(device_), p.master, p.value);
    }
  }

  CpuDevice device_;
  ParameterSet parameters_;
  Gpt model_;
  Precision precision_;
  Buffer masters_, values_, gradients_, table_;
  Arena arena_{device_, std::size_t{2} << 20};
  std::vector<std::unique_ptr<Pass>> passes_;
  std::vector<int> users_, ready_;
  std::vector<bool> open_;
  std::vector<Bytes> said_;  // gradients as they were when last reported ready
};

/// All stages, and micro-batches that pass through them.
class Chain {
 public:
  Chain(const GptConfig& config, const char* precision, const PieceCut& cut, int micro_batches,
        const TensorAxis& tensor = {})
      : config_(config), pieces_(static_cast<int>(cut.pieces.size())) {
    for (int s = 0; s < cut.stages; ++s) {
      ModelCut own{.pieces = {}, .separate_tied = cut.separate_tied};
      for (int k = s; k < pieces_; k += cut.stages)
        own.pieces.push_back(cut.pieces[static_cast<std::size_t>(k)]);
      stages_.push_back(
          std::make_unique<Stage>(config, precision_of(precision), own, micro_batches, tensor));
      stages_.back()->begin_step();
    }
    for (int m = 0; m < micro_batches; ++m) batches_.push_back(tokens_of(m));
    losses_.resize(batches_.size());
  }

  Stage& stage(int i) { return *stages_[static_cast<std::size_t>(i)]; }
  int stages() const { return static_cast<int>(stages_.size()); }
  /// Losses per token of the forward of a micro-batch.
  const std::vector<double>& losses(int m) const { return losses_[static_cast<std::size_t>(m)]; }

  static ModelBatch scaled(ModelBatch batch, double scale) {
    batch.scale = scale;
    return batch;
  }
  void forward(int m, bool postpone = false, Mode mode = Mode::train) {
    for (auto& stage : stages_) {
      stage->pass(m).begin(mode, {.batch = kBatch, .tokens = config_.block_size}, m * kBatch);
      stage->pass(m).postpone_weight_gradients(postpone);
    }
    Batch& batch = batches_[static_cast<std::size_t>(m)];
    losses_[static_cast<std::size_t>(m)] =
        numbers(run(m, scaled(token_batch(kBatch, view(batch.ids), view(batch.targets)), 1.0 / 9)));
  }
  void backward(int m) {
    const ModelBatch batch = token_batch(kBatch, view(batches_[static_cast<std::size_t>(m)].ids));
    Tensor d_stream;
    for (int k = pieces_ - 1; k >= 0; --k) {
      Stage& stage = of(k);
      d_stream = hop(std::move(d_stream), stage);
      d_stream = stage.model().backward(stage.pass(m), k / stages(), std::move(d_stream), batch);
      stage.check();
    }
  }
  void weight_gradients(int m) {
    for (int k = pieces_ - 1; k >= 0; --k) {
      of(k).model().weight_gradients(of(k).pass(m), k / stages());
      of(k).check();
    }
  }
  /// Logits after `ids`, given `at_once` at a time; a single prompt.
  std::vector<double> generate(std::vector<std::int32_t> ids, std::size_t at_once) {
    std::vector<StreamState> states;
    for (auto& stage : stages_) states.push_back(stage->model().make_state(stage->pass(0), 1));
    std::vector<double> logits;
    for (std::size_t at = 0; at < ids.size(); at += at_once) {
      const auto n = static_cast<std::int64_t>(std::min(at_once, ids.size() - at));
      for (std::size_t s = 0; s < stages_.size(); ++s)
        stages_[s]->pass(0).begin(Mode::generate, states[s].next(n), 0);
      logits = numbers(run(0, token_batch(1, {ids.data() + at, DType::i32, {n}})));
      for (StreamState& state : states) state.advance(n);
    }
    return logits;
  }

  /// Gradients by name; the parts of tied weights are separate.
  std::map<std::string, std::vector<double>> gradients() {
    std::map<std::string, std::vector<double>> all;
    for (auto& stage : stages_)
      for (const Parameter& p : stage->parameters().parameters()) {
        const std::vector<double> part = numbers(p.gradient);  // of tiles one after another
        all[p.name].insert(all[p.name].end(), part.begin(), part.end());
      }
    return all;
  }
  void check_idle() const {
    for (const auto& stage : stages_) stage->check_idle();
  }

 private:
  static constexpr std::int64_t kBatch = 2;
  struct Batch {
    std::vector<std::int32_t> ids, targets;
  };

  Batch tokens_of(int m) const {
    Batch batch;
    for (std::int64_t i = 0; i < kBatch * config_.block_size; ++i) {
      const std::int64_t sample = m * kBatch + i / config_.block_size;
      const std::int64_t position = i % config_.block_size;
      batch.ids.push_back(token_at(sample, position, config_.vocab_size));
      batch.targets.push_back(i == 3 ? -1 : token_at(sample, position + 1, config_.vocab_size));
    }
    return batch;
  }
  static TensorView view(std::vector<std::int32_t>& ids) {
    return {ids.data(), DType::i32, {static_cast<std::int64_t>(ids.size())}};
  }
  static std::vector<double> numbers(const TensorView& x) {
    std::vector<double> list;
    for (std::int64_t i = 0; i < x.count(); ++i) list.push_back(ref::load(x.data, x.dtype, i));
    return list;
  }
  Stage& of(int k) { return *stages_[static_cast<std::size_t>(k % stages())]; }
  static Tensor hop(Tensor from, Stage& to) {
    if (from.empty()) return from;
    Tensor there = to.arena().allocate(from.dtype, from.shape, "received");
    std::memcpy(there.data, from.data, from.bytes());
    return there;
  }
  Tensor run(int m, const ModelBatch& batch) {
    Tensor stream;
    for (int k = 0; k < pieces_; ++k) {
      Stage& stage = of(k);
      stream = hop(std::move(stream), stage);
      stream = stage.model().forward(stage.pass(m), k / stages(), std::move(stream), batch);
      stage.check();
    }
    return stream;
  }

  GptConfig config_;
  int pieces_;
  std::vector<std::unique_ptr<Stage>> stages_;
  std::vector<Batch> batches_;
  std::vector<std::vector<double>> losses_;
};

}  // namespace choir::test
