#pragma once
// One micro-batch in flight through a model: its sequences, the source of its memory, and the
// tensors that forward keeps for backward or that backward recomputes.

#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "choir/comm/communicator.hpp"
#include "choir/device/arena.hpp"
#include "choir/nn/parameter.hpp"
#include "choir/nn/parameter_set.hpp"
#include "choir/ops/positions.hpp"

namespace choir {

/// Tensors of a block that are kept for backward; it recomputes the others (Korthikanti et al. 2022
/// for the idea). Scores of attention are never kept. No number depends on the choice: the same
/// kernels run on the same inputs, and random numbers are functions of global coordinates.
enum class Recompute : std::uint8_t {
  none,       ///< everything that backward reads
  selective,  ///< the stream at both norms and the results of products, but not the outputs of
              ///< norms and activations
  full,       ///< the incoming stream, [N, C]
};

/// The ranks that share each layer; src/nn/axes/tensor_axis.hpp has their communication.
struct TensorAxis {
  Communicator* communicator = nullptr;  ///< for memory of the device; nullptr: one rank
  bool sequence = false;
  Summation order = Summation::fast;

  int size() const { return communicator ? communicator->size() : 1; }
  int rank() const { return communicator ? communicator->rank() : 0; }
};

/// Strategies of attention over whole sequences of which each rank has some positions; see
/// src/nn/axes/context_axis.hpp.
enum class ContextMode : std::uint8_t { ulysses, gather, ring };
struct ContextWay {
  ContextMode mode = ContextMode::ulysses;
  /// For ring: the number of neighbouring ranks that exchange heads; keys and values are passed
  /// around such groups.
  int group = 1;
  friend bool operator==(const ContextWay&, const ContextWay&) = default;
};

/// Positions [first, first + tokens) of a sequence, of which the first `real` exist. Positions at
/// or beyond its end are padding (id 0, no target). They come last, so the causal mask hides them
/// from every real query, and no gradient flows back without a target. They occupy rows of
/// activations, at most one position less than there are shares, and have no row in tables of
/// positions.
struct PositionShare {
  std::int64_t tokens = 0, first = 0, real = 0;
};
/// Share number `share` of `shares` equal ones.
PositionShare position_share(std::int64_t whole_tokens, int share, int shares);

/// The ranks that share each sequence; see src/nn/axes/context_axis.hpp.
struct ContextAxis {
  Communicator* communicator = nullptr;  ///< for memory of the device; nullptr: one rank
  ContextWay way{};

  int size() const { return communicator ? communicator->size() : 1; }
  int rank() const { return communicator ? communicator->rank() : 0; }
  /// Number of neighbouring ranks that exchange heads.
  int exchanging() const { return way.mode == ContextMode::ulysses ? size() : way.group; }
  /// Number of shares of a sequence on each rank. Two shares are the zig-zag: of 2 C shares rank c
  /// has number c and number 2 C - 1 - c, so that under a causal mask all ranks have the same work.
  /// If groups exchange heads, the zig-zag is one of groups, whose ranks are consecutive.
  int runs() const { return size() > 1 && way.mode != ContextMode::ulysses ? 2 : 1; }
  /// The positions of run 0 or 1 of a rank.
  PositionShare share(std::int64_t whole_tokens, int of_rank, int run) const {
    const int group = way.group, mirrored = 2 * (size() / group) - 1 - of_rank / group;
    return position_share(whole_tokens, run == 0 ? of_rank : mirrored * group + of_rank % group,
                          runs() * size());
  }
};

/// Ids or targets of whole sequences [B, T] -> those of a share [B, tokens]. `padding` is 0 for
/// ids, and an ignored target (-1) for targets.
void cut_positions(std::span<const std::int32_t> whole, std::int64_t whole_tokens,
                   const PositionShare& share, std::int32_t padding, std::span<std::int32_t> part);

enum class Mode { train, evaluate, generate };

class StreamState;

/// The tokens of a pass: `batch` rows of `tokens` positions starting at `first_position`. With a
/// context axis this is the share of this rank: see share_of_sequences().
struct Sequence {
  std::int64_t batch = 0;
  std::int64_t tokens = 0;
  std::int64_t first_position = 0;
  /// If not nullptr, it is added to first_position. It is in device memory and may change between
  /// replays of a recorded pass (StreamState::recorded).
  const std::int32_t* first_position_on_device = nullptr;
  /// In generation, these positions follow those that the streams have seen. The state holds the
  /// caches of the modules (choir/nn/stream_state.hpp).
  StreamState* state = nullptr;
  std::int64_t whole_tokens = 0;  ///< total over the ranks of the context axis; 0: `tokens`
  /// If not 0, the positions are two runs of tokens / 2, starting at first_position and at this
  /// one, and the rows are [2, batch, tokens / 2] instead of [batch, tokens].
  std::int64_t second_position = 0;
  bool repeated = false;  ///< every rank of the context axis has all positions
  /// Each rank of the tensor axis has other sequences, and layers that are not shared
  /// (ParameterSet::Alone).
  bool alone = false;
  // For speech, whose sequences differ in length. Both are in device memory; nullptr means that all
  // positions are valid and samples are consecutive.
  const std::int32_t* lengths = nullptr;     ///< [batch] numbers of valid positions
  const std::int64_t* sample_ids = nullptr;  ///< [batch] sample indices for random numbers
  /// If not 0, sequences consist of several documents, and no position sees another document. It is
  /// the number of all positions, which are the same on every rank. document_begins [batch,
  /// positions] has the beginning of each position's document; positions_in_document has one entry
  /// per row of this rank. Both are in device memory.
  std::int64_t document_positions = 0;
  const std::int32_t* document_begins = nullptr;
  const std::int32_t* positions_in_document = nullptr;

  std::int64_t rows() const { return batch * tokens; }
  /// Rows [batch, tokens] of consecutive positions, from row `first_row` on.
  struct Run {
    std::int64_t first_row, rows, tokens, first_position;
  };
  int runs() const { return second_position > 0 ? 2 : 1; }
  Run run(int i) const {
    return {i * rows() / runs(), rows() / runs(), tokens / runs(),
            i == 0 ? first_position : second_position};
  }
  /// Positions from this one on are padding.
  std::int64_t position_end() const {
    return whole_tokens > 0 ? whole_tokens : ops::kNoPositionEnd;
  }
};

/// The share of a rank of the context axis in `batch` sequences of `tokens` positions; on one rank
/// everything.
Sequence share_of_sequences(std::int64_t batch, std::int64_t tokens, const ContextAxis& context);

class Pass;

/// A weight gradient that a schedule may postpone (the W of a B/W split). It owns its inputs.
struct WeightGradient {
  void (*run)(Pass& pass, void* module, const Tensor& input, const Tensor& d_output) = nullptr;
  void* module = nullptr;
  Tensor input, d_output;
};

/// The memory that collects the losses of a pass: for every term one sum of losses and one number
/// of targets, f64 in device memory. Term t has the elements t * stride.
struct LossSums {
  double* sums = nullptr;
  double* counts = nullptr;
  std::int64_t stride = 1;
  std::size_t terms = 0;  ///< 0: losses are not collected
};

/// The targets that the losses of a term belong to. Their number is the sum of the three members.
struct LossTargets {
  TensorView unmasked{};  ///< i32 in device memory: every element of 0 or more is a target
  TensorView lengths{};   ///< i32 in device memory: every element is a number of targets
  double number = 0;      ///< a number that the host knows
};

/// The rows that losses belong to, where ranks of the tensor axis divide work.
enum class LossRows : std::uint8_t {
  whole,   ///< every rank of the axis has the same losses, which count once
  shared,  ///< every rank has the losses of its own rows (share_rows()) or sequences
           ///< (Sequence::alone); they are added up over the axis
};

/// The factor of the gradient of the sum of a term's losses: weight / targets of the global batch *
/// loss scale. It is scale * *on_device.
struct LossFactor {
  double scale = 1;
  const double* on_device = nullptr;  ///< device memory; nullptr: 1
};

/// Any number of passes may be in flight at once, also on one arena: modules keep nothing between
/// forward and backward except what they save here. A pass is reused for later micro-batches;
/// begin() starts the next one. It allocates nothing after the first one, and nothing at all for
/// usual depths.
class Pass {
 public:
  Pass(Stream stream, Arena& arena, const Precision& precision, std::uint64_t seed,
       const TensorAxis& tensor = {}, const ContextAxis& context = {});

  /// `first_sample`, plus the value at `on_device` (nullptr: 0), is the global index of the first
  /// sequence, from which random numbers are computed.
  void begin(Mode mode, const Sequence& sequence, std::int64_t first_sample,
             const std::int64_t* on_device = nullptr);
  /// Adds another sequence to the pass, for example frames for an encoder beside tokens for a
  /// decoder. Returns its number for On.
  int add_sequence(const Sequence& sequence);
  /// While it exists, the functions of the pass refer to that sequence: its rows, their shares, its
  /// positions.
  class On {
   public:
    On(Pass& pass, int sequence) : pass_(&pass), before_(pass.current_) { pass.turn_to(sequence); }
    ~On() { pass_->current_ = before_; }
    On(const On&) = delete;
    On& operator=(const On&) = delete;

   private:
    Pass* pass_;
    std::size_t before_;
  };

  Mode mode() const { return mode_; }
  bool training() const { return mode_ == Mode::train; }
  const Sequence& sequence() const { return sequences_[current_]; }
  const Sequence& sequence(int number) const {
    return sequences_[static_cast<std::size_t>(number)];
  }
  std::int64_t first_sample() const { return first_sample_; }
  const std::int64_t* first_sample_on_device() const { return first_sample_on_device_; }
  std::uint64_t seed() const { return seed_; }
  /// Statistics of this micro-batch are written to this record (RunningStatistics::records) until
  /// the next begin(); -1: not written.
  void record_in(std::int64_t place) { record_ = place; }
  std::int64_t record() const { return record_; }
  const Stream& stream() const { return stream_; }
  const Precision& precision() const { return precision_; }

  const ContextAxis& context() const { return context_; }
  /// True if other ranks have the other positions of these sequences. False in generation, in which
  /// every rank of the context axis has all positions and does the same work.
  bool shares_positions() const { return shares_positions(sequence()); }

  /// The ranks that share each layer of this sequence.
  const TensorAxis& tensor() const { return tensor(sequence()); }
  /// The ranks that share the layers of the pass's first sequence.
  const TensorAxis& whole_tensor() const { return tensor_; }
  /// True if norms, dropout and the residual stream hold share_rows() of the rows, starting at
  /// first_share_row(). False in generation, in which there is almost nothing to share.
  bool shares_rows() const { return shares_rows(sequence()); }
  std::int64_t share_rows() const { return share_rows(sequence()); }
  std::int64_t share_rows(const Sequence& sequence) const {
    const std::int64_t rows = sequence.rows();
    return shares_rows(sequence) ? (rows + tensor_.size() - 1) / tensor_.size() : rows;
  }
  std::int64_t first_share_row() const { return shares_rows() ? tensor_.rank() * share_rows() : 0; }

  /// Activations in the compute type, statistics, and scratch memory; all uninitialised.
  Tensor allocate(const Shape& shape, const char* tag);
  Tensor allocate_statistic(const Shape& shape, const char* tag);
  Tensor scratch(std::int64_t bytes, const char* tag);
  /// True if passes of several shapes share a plan (Arena::begin_sequence). Then the number and
  /// lifetimes of the requests must not depend on the shape.
  bool mixes_shapes() const { return arena_->in_sequence(); }

  /// The stack of tensors that forward keeps for backward. save() keeps nothing unless training,
  /// and nothing while an Unsaved exists.
  void save(const Tensor& tensor);
  Tensor pop();
  std::size_t saved() const { return saved_.size(); }
  bool saves() const { return training() && saving_; }
  /// While it exists nothing is saved, for a forward that backward will run again. The kernels are
  /// the same as in a forward that saves.
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

  /// The following work belongs to this piece of the model; it is the forward of the piece or,
  /// recomputation included, its backward.
  void begin_piece(int piece, bool backward = false) {
    piece_ = piece;
    backward_ = backward;
  }

  /// Adds losses to a term of the model's loss (ModelFamily::loss_terms) in this micro-batch, from
  /// any unit, any number of times. `losses` are f32 or f64 of any shape; masked positions and
  /// padding must be 0 or left out, and `targets` must not count them. Recomputation adds nothing,
  /// because forward has added the losses already. If all ranks of the context axis have the same
  /// positions (Sequence::repeated), only rank 0 adds; see adds_losses(). The unit computes the
  /// gradient itself, with loss_factor(). Collective over the tensor axis for LossRows::shared,
  /// otherwise local.
  void add_loss(std::size_t term, const TensorView& losses, const LossTargets& targets,
                LossRows rows = LossRows::whole);
  /// False if another rank of the context axis adds the same losses. Their gradient then belongs to
  /// that rank, too.
  bool adds_losses() const { return !sequence().repeated || context_.rank() == 0; }
  LossFactor loss_factor(std::size_t term) const {
    return {loss_scale_, loss_factors_ == nullptr ? nullptr : loss_factors_ + term};
  }
  /// Until the next begin() losses are collected there, and have these factors: `scale` times the
  /// device scalar of the term (nullptr: 1).
  void collect_losses(const LossSums& sums) { loss_sums_ = sums; }
  void set_loss_factors(double scale, const double* of_terms) {
    loss_scale_ = scale;
    loss_factors_ = of_terms;
  }

  /// The hooks that this pass calls for the buckets of parameters, from now on. They must outlive
  /// their use. Without hooks the values are always there, and nobody waits for gradients.
  void set_hooks(BucketHooks& hooks) { hooks_ = &hooks; }
  /// The values of the bucket are read from acquire() to release(): see BucketHooks.
  void acquire(int bucket) {
    if (hooks_) hooks_->acquire(bucket);
  }
  void release(int bucket) {
    if (hooks_) hooks_->release(bucket);
  }

  /// Weight gradients run at once or, while postponed, in run_weight_gradients(). Only they write
  /// to gradients, and the calls of the hooks keep the order of the writes.
  void postpone_weight_gradients(bool yes) { postpone_ = yes; }
  bool postpones_weight_gradients() const { return postpone_; }
  void begin_gradients(int bucket);
  void weight_gradient(WeightGradient work);
  void gradients_ready(int bucket);
  /// Runs the postponed work of the backward of `piece` in its order; pieces must follow the order
  /// of their backward. The ids passed to backward must still be alive.
  void run_weight_gradients(int piece);

 private:
  struct Postponed {
    enum class Kind { begin_gradients, weight_gradient, gradients_ready } kind;
    int piece = 0;
    int bucket = -1;  ///< argument of the hooks
    WeightGradient work;
    int sequence = 0;  ///< number of the sequence of the work
  };
  void turn_to(int sequence);
  bool shares_positions(const Sequence& sequence) const {
    return context_.size() > 1 && mode_ != Mode::generate && !sequence.repeated;
  }
  const TensorAxis& tensor(const Sequence& sequence) const {
    return sequence.alone ? one_rank_ : tensor_;
  }
  bool shares_rows(const Sequence& sequence) const {
    const TensorAxis& axis = tensor(sequence);
    return axis.sequence && axis.size() > 1 && mode_ != Mode::generate;
  }
  void postpone(Postponed entry);

  Stream stream_;
  Arena* arena_;
  BucketHooks* hooks_ = nullptr;
  Precision precision_;
  std::uint64_t seed_;
  TensorAxis tensor_, one_rank_;
  ContextAxis context_;
  Mode mode_ = Mode::evaluate;
  std::vector<Sequence> sequences_;
  std::size_t current_ = 0;  // index into sequences_
  std::int64_t first_sample_ = 0;
  const std::int64_t* first_sample_on_device_ = nullptr;
  std::int64_t record_ = -1;
  bool saving_ = true;
  bool postpone_ = false;
  int piece_ = 0;
  bool backward_ = false;
  LossSums loss_sums_;
  double loss_scale_ = 1;
  const double* loss_factors_ = nullptr;  // [terms] in device memory
  std::vector<Tensor> saved_;
  std::vector<Postponed> postponed_;
  std::size_t next_postponed_ = 0;
};

/// The gradient of a small parameter that a kernel adds while it computes the gradient of its
/// input. If the pass postpones weight gradients, the kernel adds to separate memory, and its
/// addition to the gradient is postponed.
class SideGradient {
 public:
  /// Treatment of the sums of a frozen parameter: the kernel omits them, or writes them to memory
  /// that is not read.
  enum class Frozen { left_out, discarded };
  /// Without a parameter (nullptr) view() is empty.
  SideGradient(Pass& pass, Parameter* parameter, Frozen frozen = Frozen::left_out);
  /// The kernel's output, with the shape of the gradient.
  TensorView view() const;
  /// To be called after the kernel.
  void finish(Pass& pass);

 private:
  static void add(Pass& pass, void* parameter, const Tensor& sums, const Tensor& none);

  Parameter* parameter_;  // nullptr: none, or frozen
  Tensor own_;
};

}  // namespace choir
