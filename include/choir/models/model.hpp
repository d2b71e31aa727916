#pragma once
// What the engine asks of every model. A rank holds all of it, or some pieces of consecutive units
// (a stage of a pipeline). What passes between pieces is one tensor, the residual stream: cut
// anywhere, the results are those of the whole model, bit by bit.
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "choir/models/batch.hpp"
#include "choir/models/pieces.hpp"
#include "choir/models/trained_units.hpp"
#include "choir/nn/parameter.hpp"
#include "choir/nn/pass.hpp"
#include "choir/nn/stream_state.hpp"

namespace choir {

class Model {
 public:
  /// The model has `blocks` blocks, of which this rank has those of the cut.
  Model(ParameterSet& parameters, const ModelCut& cut, std::int64_t blocks)
      : parameters_(&parameters), pieces_(cut, blocks) {}
  virtual ~Model() = default;

  int pieces() const { return pieces_.count(); }
  const ModelPieces::Piece& piece(int index) const { return pieces_[index]; }
  bool has_head(int index) const { return pieces_[index].head; }

  /// Bytes of tables in device memory that every pass reads (rotary angles, mel filters, windows
  /// ...), and their making: once, before any pass. `memory` holds for the life of the model.
  virtual std::size_t table_bytes(const Precision&) const { return 0; }
  virtual void prepare(Pass&, void* /*memory*/) { trained_.find(*parameters_); }

  /// What a pass over the batch is begun with: sizes from the shapes of its views, on every stage
  /// the same. By default its tokens.
  virtual Sequence sequence_of(const ModelBatch& batch, const ContextAxis& context) const {
    return share_of_sequences(batch.samples, batch.tokens, context);
  }
  /// The other sequences of a pass that has begun, by Pass::add_sequence.
  virtual void add_sequences(Pass&, const ModelBatch&) const {}
  /// Ranks of the tensor axis share rows and columns of fields (BatchField::shared), too: each has
  /// sequences of its own (Sequence::alone) in a part of the model.
  virtual bool divides_rows() const { return false; }
  void begin(Pass& pass, Mode mode, const ModelBatch& batch) const {
    pass.begin(mode, sequence_of(batch, pass.context()), batch.first_sample,
               batch.first_sample_on_device);
    add_sequences(pass, batch);
  }
  /// What `unit` hands to the next, in the compute type, in a pass that has begun: [rows, C] of
  /// the residual stream, this rank's share of the rows under sequence parallelism.
  virtual Shape boundary_shape(const Pass& pass, int unit) const = 0;

  /// One piece. `input`: what the piece before returned, empty where the input layer is; kept for
  /// backward. Returns the residual stream or, with the head, losses: per token [B*T] or per
  /// utterance [B], and where the loss has several terms a row of equally many for each, zeros
  /// where a term has fewer; in Mode::generate the scores themselves (see the model).
  virtual Tensor forward(Pass& pass, int piece, Tensor input, const ModelBatch& batch,
                         BucketHooks& hooks) = 0;
  /// Consumes what forward saved: of the pieces of a pass in reverse order. `d_output`: the
  /// gradient of the stream returned, empty with the head; move it in, so that it can be updated in
  /// place. Returns that of the input, empty with the input layer. Adds to the gradients of every
  /// trainable parameter, or leaves that to weight_gradients() where the pass postpones.
  virtual Tensor backward(Pass& pass, int piece, Tensor d_output, const ModelBatch& batch,
                          BucketHooks& hooks) = 0;
  /// Whether backward of the piece has anything to do: something in it or below is trained. If not
  /// forward keeps nothing of it, and backward gives back the gradient it got, unused.
  bool trains(int index) const { return trained_.reach(pieces_[index].last_unit); }
  /// The lowest unit of the whole model that backward reaches, once its parameters are frozen.
  int lowest_trained_unit() {
    trained_.find(*parameters_);
    return trained_.lowest();
  }
  /// What backward of the piece has postponed; pieces in the order of their backward. Until then
  /// the batch must live, and hooks hear nothing of gradients. Values are not needed.
  void weight_gradients(Pass& pass, int piece, BucketHooks& hooks) {
    if (trains(piece)) pass.run_weight_gradients(piece, hooks);
  }

  /// What the pieces of this rank keep of `streams` streams that come piece by piece, at the
  /// beginning of them. Passes in Mode::generate are begun with StreamState::next(). Collective as
  /// forward() is; parameters may change only before.
  virtual StreamState make_state(Pass&, BucketHooks&, std::int64_t /*streams*/) const {
    throw Error(ExitCode::other, "this model cannot take sequences piece by piece");
  }

  /// Describes the whole model: one module a line, with parameter counts.
  virtual std::string describe() const = 0;
  /// Parameter counts that users of the family look for, beside that of all: what is counted, and
  /// how many.
  virtual std::vector<std::pair<std::string, std::int64_t>> further_counts() const { return {}; }
  /// Model FLOPs of forward and backward of what counts in one batch of this shape, for the MFU.
  virtual double flops(const BatchShape& shape) const = 0;

 protected:
  /// What forward of a piece begins with: it reads the batch, or the output of the piece before it.
  const ModelPieces::Piece& begin_forward(Pass& pass, int index, const Tensor& input) const;
  /// ... and backward, which gets the gradient of the output, but none of the losses.
  const ModelPieces::Piece& begin_backward(Pass& pass, int index, const Tensor& d_output) const;

  ParameterSet* parameters_;
  ModelPieces pieces_;
  TrainedUnits trained_;
};

}  // namespace choir
