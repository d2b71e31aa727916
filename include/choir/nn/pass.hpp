#pragma once
// One micro-batch in flight through a model: what it is, where its memory comes from, and what
// forward keeps for backward.
#include <cstdint>
#include <vector>

#include "choir/core/negative_control.hpp"
#include "choir/device/arena.hpp"
#include "choir/nn/bucket_hooks.hpp"
#include "choir/nn/context_axis.hpp"
#include "choir/nn/precision.hpp"
#include "choir/nn/tensor_axis.hpp"
#include "choir/ops/positions.hpp"

namespace choir {

enum class Mode { train, evaluate, generate };

/// K and V of all positions seen so far, one pair of tensors a layer: [B, capacity, Hkv, D].
struct KvCache {
  std::vector<TensorView> keys, values;
  std::int64_t capacity = 0;
  std::int64_t length = 0;  ///< positions already stored, before this pass
};

/// The tokens of this pass: `batch` rows of `tokens` positions starting at `first_position`. With a
/// context axis this is the share of this rank: see share_of_sequences().
struct Sequence {
  std::int64_t batch = 0;
  std::int64_t tokens = 0;
  std::int64_t first_position = 0;
  KvCache* cache = nullptr;       ///< generate mode only
  std::int64_t whole_tokens = 0;  ///< on all ranks of the context axis; 0: `tokens`
  // Speech: sequences of different lengths, in device memory; nullptr: all of them count, and
  // samples are consecutive.
  const std::int32_t* lengths = nullptr;     ///< [batch] positions that count
  const std::int64_t* sample_ids = nullptr;  ///< [batch] what random numbers are functions of

  std::int64_t rows() const { return batch * tokens; }
  /// Positions from here on are padding.
  std::int64_t position_end() const {
    return whole_tokens > 0 ? whole_tokens : ops::kNoPositionEnd;
  }
};

/// What a rank of the context axis has of `batch` sequences of `tokens` positions; on one rank all.
Sequence share_of_sequences(std::int64_t batch, std::int64_t tokens, const ContextAxis& context);

class Pass;

/// A weight gradient that a schedule may postpone (the W of a B/W split). Owns what it needs.
struct WeightGradient {
  void (*run)(Pass& pass, void* module, const Tensor& input, const Tensor& d_output) = nullptr;
  void* module = nullptr;
  Tensor input, d_output;
};

/// Any number of passes may be in flight at once, also on one arena: modules keep nothing between
/// forward and backward but what they save here. Reused from micro-batch to micro-batch; begin()
/// starts the next one. Allocates nothing after construction.
class Pass {
 public:
  Pass(Stream stream, Arena& arena, const Precision& precision, std::uint64_t seed,
       const TensorAxis& tensor = {}, const ContextAxis& context = {});

  /// `first_sample`, plus what `on_device` points at (nullptr: 0), is the global index of the first
  /// sequence: random numbers are functions of it.
  void begin(Mode mode, const Sequence& sequence, std::int64_t first_sample,
             const std::int64_t* on_device = nullptr);

  Mode mode() const { return mode_; }
  bool training() const { return mode_ == Mode::train; }
  const Sequence& sequence() const { return sequence_; }
  std::int64_t first_sample() const { return first_sample_; }
  const std::int64_t* first_sample_on_device() const { return first_sample_on_device_; }
  std::uint64_t seed() const { return seed_; }
  /// Statistics of this micro-batch are recorded in this place (RunningStatistics::records) until
  /// the next begin(); -1: nowhere.
  void record_in(std::int64_t place) { record_ = place; }
  std::int64_t record() const { return record_; }
  const Stream& stream() const { return stream_; }
  const Precision& precision() const { return precision_; }

  const ContextAxis& context() const { return context_; }
  /// Other ranks have the other positions of these sequences. Not in generation: there every rank
  /// of the context axis has them all, and does what the others do.
  bool shares_positions() const { return context_.size() > 1 && mode_ != Mode::generate; }

  const TensorAxis& tensor() const { return tensor_; }
  /// A rule to break from now on; for tests.
  void inject(NegativeControl control) { control_ = control; }
  bool breaks(NegativeControl control) const { return control_ == control; }
  /// Norms, dropout and the residual stream hold share_rows() of the rows, from
  /// first_share_row() on. Not in generation, where there is next to nothing to share.
  bool shares_rows() const {
    return tensor_.sequence && tensor_.size() > 1 && mode_ != Mode::generate;
  }
  std::int64_t share_rows() const {
    return shares_rows() ? (sequence_.rows() + tensor_.size() - 1) / tensor_.size()
                         : sequence_.rows();
  }
  std::int64_t first_share_row() const { return shares_rows() ? tensor_.rank() * share_rows() : 0; }

  /// Activations in the compute type; statistics and scratch beside them. Uninitialised.
  Tensor allocate(const Shape& shape, const char* tag);
  Tensor allocate_statistic(const Shape& shape, const char* tag);
  Tensor scratch(std::int64_t bytes, const char* tag);

  /// What forward leaves for backward, last in first out. save() keeps nothing unless training, and
  /// nothing while an Unsaved lives.
  void save(const Tensor& tensor);
  Tensor pop();
  std::size_t saved() const { return saved_.size(); }
  bool saves() const { return training() && saving_; }
  /// For a forward that backward will run again. Kernels are the same as in one that saves.
  class Unsaved {
   public:
    explicit Unsaved(Pass& pass, bool yes = true) : pass_(&pass), before_(pass.saving_) {
      if (yes) pass.saving_ = false;
    }
    ~Unsaved() { pass_->saving_ = before_; }
    Unsaved(const Unsaved&) = delete;
    Unsaved& operator=(const Unsaved&) = delete;

   private:
    Pass* pass_;
    bool before_;
  };

  /// What follows belongs to this piece of the model.
  void begin_piece(int piece) { piece_ = piece; }

  /// Weight gradients run at once, or wait for run_weight_gradients() while postponed. Nothing else
  /// writes to gradients, and what is said of a bucket is said in the order of the writing.
  void postpone_weight_gradients(bool yes) { postpone_ = yes; }
  bool postpones_weight_gradients() const { return postpone_; }
  void begin_gradients(BucketHooks& hooks, int bucket);
  void weight_gradient(WeightGradient work);
  void gradients_ready(BucketHooks& hooks, int bucket);
  /// Runs what backward of `piece` has postponed, in its order; pieces in the order of their
  /// backward. `hooks` hear of the buckets; the ids given to backward must still live.
  void run_weight_gradients(int piece, BucketHooks& hooks);

 private:
  struct Postponed {
    enum class Kind { begin_gradients, weight_gradient, gradients_ready } kind;
    int piece = 0;
    int bucket = -1;  ///< of the hooks
    WeightGradient work;
  };
  void postpone(Postponed entry);

  Stream stream_;
  Arena* arena_;
  Precision precision_;
  std::uint64_t seed_;
  TensorAxis tensor_;
  ContextAxis context_;
  NegativeControl control_ = NegativeControl::none;
  Mode mode_ = Mode::evaluate;
  Sequence sequence_;
  std::int64_t first_sample_ = 0;
  const std::int64_t* first_sample_on_device_ = nullptr;
  std::int64_t record_ = -1;
  bool saving_ = true;
  bool postpone_ = false;
  int piece_ = 0;
  std::vector<Tensor> saved_;
  std::vector<Postponed> postponed_;
  std::size_t next_postponed_ = 0;
};

}  // namespace choir
