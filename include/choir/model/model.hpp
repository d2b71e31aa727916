#pragma once
// What the engine asks of every model. A rank holds all of it, or some pieces of consecutive units
// (a stage of a pipeline). What passes between pieces is one tensor, the residual stream: cut
// anywhere, the results are those of the whole model, bit by bit.
#include <cstdint>
#include <string>

#include "choir/model/batch.hpp"
#include "choir/model/units.hpp"
#include "choir/nn/bucket_hooks.hpp"
#include "choir/nn/pass.hpp"

namespace choir {

class Model {
 public:
  virtual ~Model() = default;

  virtual int pieces() const = 0;
  virtual bool has_head(int piece) const = 0;

  /// Bytes of tables in device memory that every pass reads (rotary angles, mel filters, windows
  /// ...), and their making: once, before any pass. `memory` holds for the life of the model.
  virtual std::size_t table_bytes(const Precision& precision) const = 0;
  virtual void prepare(Pass& pass, void* memory) = 0;

  /// What a pass over the batch is begun with: sizes from the shapes of its views, on every stage
  /// the same.
  virtual Sequence sequence_of(const ModelBatch& batch, const ContextAxis& context) const = 0;
  /// Of the residual stream between pieces, in the compute type, in a pass that has begun: [rows,
  /// C], this rank's share of the rows under sequence parallelism.
  virtual Shape boundary_shape(const Pass& pass) const = 0;

  /// One piece. `input`: what the piece before returned, empty where the input layer is; kept for
  /// backward. Returns the residual stream or, with the head, losses: per token [B*T] or per
  /// utterance [B]; in Mode::generate the scores themselves (see the model).
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
  virtual bool trains(int piece) const = 0;
  /// What backward of the piece has postponed; pieces in the order of their backward. Until then
  /// the batch must live, and hooks hear nothing of gradients. Values are not needed.
  void weight_gradients(Pass& pass, int piece, BucketHooks& hooks) {
    if (trains(piece)) pass.run_weight_gradients(piece, hooks);
  }

  /// Of the whole model: one module a line, with parameter counts.
  virtual std::string describe() const = 0;
  /// Model FLOPs of forward and backward of what counts in one batch of this shape, for the MFU.
  virtual double flops(const BatchShape& shape) const = 0;
};

}  // namespace choir
