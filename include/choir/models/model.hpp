#pragma once
// The units of a model and the interface between the engine and every model. A model can be cut
// between its units: unit 0 is the input layer (embedding or subsampling), units 1 ... L are the
// blocks, unit L + 1 is the head with the layers directly before it. A rank holds the whole model
// or some pieces of consecutive units (a stage of a pipeline). Only one tensor passes between
// pieces, the residual stream. Wherever the model is cut, the results equal those of the whole
// model, bit by bit. Backward stops at the lowest unit with trainable parameters. The loss of a
// model is a weighted sum of named terms. Each term is the mean over its own targets in the global
// batch, however these are spread over micro-batches and ranks; a rank without targets of a term
// contributes nothing to it. Any unit can add to a term, and counts the targets it has used.

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "choir/core/error.hpp"
#include "choir/core/tensor.hpp"
#include "choir/models/batch.hpp"
#include "choir/nn/parameter.hpp"
#include "choir/nn/parameter_set.hpp"
#include "choir/nn/pass.hpp"
#include "choir/nn/stream_state.hpp"
#include "choir/ops/step_control.hpp"

namespace choir {

/// Consecutive units: [first, first + count).
struct UnitRange {
  int first = 0;
  int count = 0;
  friend bool operator==(const UnitRange&, const UnitRange&) = default;
  int end() const { return first + count; }
  bool contains(int unit) const { return unit >= first && unit < end(); }
};

/// The distribution of a model over the stages of a pipeline.
struct ModelCut {
  /// The pieces of this rank in the model's order; a piece may be the input layer or the head
  /// alone. Empty: one piece with everything.
  std::vector<UnitRange> pieces;
  /// Tied weights: head and embedding each keep a copy with a gradient of its own, even on one
  /// rank, so that sums of gradients do not depend on the cut.
  bool separate_tied = false;
};

/// The cost of each unit, in any measure, such as FLOPs or seconds for one micro-batch.
using UnitCosts = std::vector<double>;
/// The costs of a model whose blocks are alike.
inline UnitCosts alike(double input, double block, double head, std::int64_t blocks) {
  UnitCosts costs(static_cast<std::size_t>(blocks) + 2, block);
  costs.front() = input;
  costs.back() = head;
  return costs;
}

/// A plain value. Local.
class ModelPieces {
 public:
  struct Piece {
    bool input = false, head = false;
    int first_unit = 0, last_unit = 0;
    bool contains(int unit) const { return unit >= first_unit && unit <= last_unit; }
  };
  /// Cuts a model of `layers` blocks. The ranges of the cut are in the order of the model.
  ModelPieces(const ModelCut& cut, std::int64_t layers);

  int count() const { return static_cast<int>(pieces_.size()); }
  const Piece& operator[](int index) const;
  bool resident(int unit) const;
  bool has_input() const { return resident(0); }
  bool has_head() const { return resident(units_ - 1); }
  /// True if the pieces cover the whole model.
  bool whole() const { return whole_; }

 private:
  int units_;
  std::vector<UnitRange> ranges_;
  std::vector<Piece> pieces_;
  bool whole_ = false;
};

class TrainedUnits {
 public:
  /// Parameters that are added from here on belong to the next unit; the first is unit 0.
  void begin_unit(const ParameterSet& parameters) { begins_.push_back(parameters.all().size()); }
  /// Call after parameters were frozen, those of other stages included. Until then all count as
  /// trained.
  void find(const ParameterSet& parameters);
  /// True if backward passes through this unit.
  bool reach(int unit) const { return unit >= lowest_; }
  int lowest() const { return lowest_; }
  /// FLOPs of forward and backward, given the forward costs of each unit. The gradient of a unit's
  /// input costs as much again, as far down as backward goes. The gradient of its weights costs as
  /// much again, times the share of them that is trained.
  double flops(const UnitCosts& costs) const;

 private:
  std::vector<std::size_t>
      begins_;  // first parameter of each unit, an index into ParameterSet::all()
  std::vector<double>
      trained_;  // trained share of each unit's elements; empty: everything is trained
  int lowest_ = 0;
};

struct LossTerm {
  std::string name;  ///< as in logs: "text_loss"
  double weight = 1;
  /// The index of an earlier term that has the same targets, such as the tokens of an auxiliary
  /// loss. The data then announce no number of their own for this term. -1: they do.
  int counts_as = -1;
};

/// One number for each term, in the order of ModelFamily::loss_terms; with a single term simply a
/// number. Allocates nothing.
class ByTerm {
 public:
  ByTerm() = default;
  ByTerm(double only) : values_{only}, size_(1) {}
  ByTerm(std::size_t terms, double each) : size_(terms) {
    CHOIR_CHECK(terms <= values_.size(), "a loss of {} terms", terms);
    std::fill_n(values_.begin(), terms, each);
  }

  std::size_t size() const { return size_; }
  double operator[](std::size_t term) const { return values_.at(term); }
  double& operator[](std::size_t term) { return values_.at(term); }
  /// The number of the first term, whose targets throughput counts.
  double first() const { return values_[0]; }
  double* begin() { return values_.data(); }
  double* end() { return values_.data() + size_; }
  const double* begin() const { return values_.data(); }
  const double* end() const { return values_.data() + size_; }

  /// Adds term by term; an empty value counts as zeros.
  ByTerm& operator+=(const ByTerm& other) {
    for (std::size_t t = 0; t < other.size_; ++t) values_[t] += other.values_[t];
    size_ = std::max(size_, other.size_);
    return *this;
  }
  friend bool operator==(const ByTerm&, const ByTerm&) = default;

 private:
  std::array<double, ops::kMostLossTerms> values_{};
  std::size_t size_ = 0;
};

/// The numbers of targets of all terms. `announced` has one number for each term that counts for
/// itself, in their order, or one for each term.
ByTerm targets_of_terms(const std::vector<LossTerm>& terms, const ByTerm& announced);

/// The losses of one term, [n], in the result of a model's head (Model::forward).
inline TensorView losses_of_term(const TensorView& losses, std::size_t term, std::size_t terms) {
  const auto count = static_cast<std::int64_t>(terms);
  const std::int64_t n = losses.count() / count;
  return losses.reshaped({count * n}).slice(static_cast<std::int64_t>(term) * n, n);
}

/// The weighted sum of the terms' means. If there are several terms, those without targets are left
/// out.
double weighted_loss(const std::vector<LossTerm>& terms, const ByTerm& means,
                     const ByTerm& targets);

/// The means by name, as logs show them beside the loss: the terms with targets of a loss that has
/// several terms.
std::vector<std::pair<std::string, double>> means_by_name(const std::vector<LossTerm>& terms,
                                                          const ByTerm& means,
                                                          const ByTerm& targets);

class Model {
 public:
  /// The model has `blocks` blocks; this rank holds those of the cut.
  Model(ParameterSet& parameters, const ModelCut& cut, std::int64_t blocks)
      : parameters_(&parameters), pieces_(cut, blocks) {}
  virtual ~Model() = default;

  int pieces() const { return pieces_.count(); }
  const ModelPieces::Piece& piece(int index) const { return pieces_[index]; }
  bool has_head(int index) const { return pieces_[index].head; }

  /// Bytes of the tables in device memory that every pass reads (rotary angles, mel filters,
  /// windows
  /// ...), and a function that computes them once, before any pass. `memory` remains valid for the
  /// life of the model.
  virtual std::size_t table_bytes(const Precision&) const { return 0; }
  virtual void prepare(Pass&, void* /*memory*/) { trained_.find(*parameters_); }

  /// The sequences that a pass over the batch begins with. They follow from the shapes of its views
  /// and are the same on every stage. By default they are the batch's tokens.
  virtual Sequence sequence_of(const ModelBatch& batch, const ContextAxis& context) const {
    return share_of_sequences(batch.samples, batch.tokens, context);
  }
  /// Adds the other sequences of a pass that has begun, by Pass::add_sequence.
  virtual void add_sequences(Pass&, const ModelBatch&) const {}
  /// True if ranks of the tensor axis also divide rows and columns of fields (BatchField::shared):
  /// each then has its own sequences (Sequence::alone) in a part of the model.
  virtual bool divides_rows() const { return false; }
  void begin(Pass& pass, Mode mode, const ModelBatch& batch) const {
    pass.begin(mode, sequence_of(batch, pass.context()), batch.first_sample,
               batch.first_sample_on_device);
    pass.set_loss_factors(batch.scale, batch.device_scales);
    add_sequences(pass, batch);
  }
  /// The shape of the tensor that `unit` passes to the next one, in the compute type, in a pass
  /// that has begun: [rows, C] of the residual stream, where rows are this rank's share under
  /// sequence parallelism.
  virtual Shape boundary_shape(const Pass& pass, int unit) const = 0;

  /// Runs one piece. `input`: the result of the previous piece, empty for the piece with the input
  /// layer; it is kept for backward. Returns the residual stream or, for the piece with the head,
  /// the losses: per token [B*T] or per utterance [B]. In Mode::generate the head returns the
  /// scores themselves (see the model). Any unit adds its losses to the terms that it belongs to
  /// (Pass::add_loss); only these sums are trained and reported.
  virtual Tensor forward(Pass& pass, int piece, Tensor input, const ModelBatch& batch) = 0;
  /// Consumes what forward saved; the pieces of a pass are called in reverse order. `d_output`: the
  /// gradient of the returned stream, empty for the piece with the head; move it in, so that it can
  /// be updated in place. Returns the gradient of the input, empty for the piece with the input
  /// layer. Adds to the gradients of every trainable parameter, or leaves that to
  /// weight_gradients() if the pass postpones them.
  virtual Tensor backward(Pass& pass, int piece, Tensor d_output, const ModelBatch& batch) = 0;
  /// True if backward of the piece has work: the piece or one below it has trainable parameters.
  /// Otherwise forward saves nothing of it, and backward returns the gradient it received, unused.
  bool trains(int index) const { return trained_.reach(pieces_[index].last_unit); }
  /// The lowest unit of the whole model that backward reaches, after parameters were frozen.
  int lowest_trained_unit() {
    trained_.find(*parameters_);
    return trained_.lowest();
  }
  /// Computes the gradients that backward of the piece has postponed; call it for the pieces in the
  /// order of their backward. The batch must live until then, and no hook is called for a gradient
  /// before. Parameter values are not needed.
  void weight_gradients(Pass& pass, int piece) {
    if (trains(piece)) pass.run_weight_gradients(piece);
  }

  /// The state of `streams` streams, at their beginning, that the pieces of this rank process part
  /// by part. Their passes begin with StreamState::next() in Mode::generate. Collective like
  /// forward(); parameters must not change afterwards.
  virtual StreamState make_state(Pass&, std::int64_t /*streams*/) const {
    throw Error(ExitCode::other, "this model cannot take sequences piece by piece");
  }

  /// Describes the whole model: one line per module, with parameter counts.
  virtual std::string describe() const = 0;
  /// Further parameter counts that users of the family look for, besides the total: names and
  /// numbers.
  virtual std::vector<std::pair<std::string, std::int64_t>> further_counts() const { return {}; }
  /// Model FLOPs of forward and backward for the real content of one batch of this shape, for the
  /// MFU.
  virtual double flops(const BatchShape& shape) const = 0;

 protected:
  /// Begins the forward of a piece, which reads the batch or the output of the previous piece.
  const ModelPieces::Piece& begin_forward(Pass& pass, int index, const Tensor& input) const;
  /// Begins the backward of a piece, which receives the gradient of its output unless it has the
  /// head.
  const ModelPieces::Piece& begin_backward(Pass& pass, int index, const Tensor& d_output) const;

  ParameterSet* parameters_;
  ModelPieces pieces_;
  TrainedUnits trained_;
};

}  // namespace choir
