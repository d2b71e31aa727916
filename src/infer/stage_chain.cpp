#include "src/infer/stage_chain.hpp"

#include <utility>

namespace choir {

Tensor forward_through_stages(Model& model, Pass& pass, const ModelBatch& batch, BucketHooks& hooks,
                              Communicator& stages) {
  const int stage = stages.rank(), last = stages.size() - 1;
  const int before = stage == 0 ? last : stage - 1, behind = stage == last ? 0 : stage + 1;
  Tensor stream;
  for (int chunk = 0; chunk < model.pieces(); ++chunk) {
    const bool begins = stage == 0 && chunk == 0;
    const bool ends = stage == last && chunk == model.pieces() - 1;
    if (!begins && last > 0) {
      stream = pass.allocate(model.boundary_shape(pass, model.piece(chunk).first_unit - 1),
                             "activation received");
      stages.receive(stream.data, stream.bytes(), before, chunk);
    }
    stream = model.forward(pass, chunk, std::move(stream), batch, hooks);
    if (ends) return stream;
    // The first stage receives the output of the last stage as input of its next chunk.
    if (last > 0) stages.send(stream.data, stream.bytes(), behind, chunk + (stage == last));
    if (last > 0) stream.reset();
  }
  return {};
}

}  // namespace choir
