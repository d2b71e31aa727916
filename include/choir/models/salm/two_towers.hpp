#pragma once
// What models of an encoder before a decoder share.
#include <string>
#include <vector>

#include "choir/core/key_table.hpp"
#include "choir/device/arena.hpp"
#include "choir/models/fastconformer/encoder_tower.hpp"
#include "choir/models/pieces.hpp"

namespace choir {

/// Where tables behind those of the encoder begin, so that they are aligned.
inline std::size_t tables_behind(const EncoderTower& encoder, const Precision& precision) {
  return static_cast<std::size_t>(
      round_up(static_cast<std::int64_t>(encoder.table_bytes(precision)), Arena::kAlignment));
}

/// Backward comes from the head to the embedding, which is in the junction, before another
/// micro-batch comes between.
inline bool ends_meet(const ModelPieces& pieces, int junction) {
  for (int i = 0; i < pieces.count(); ++i)
    if (pieces[i].contains(junction) && pieces[i].head) return true;
  return pieces.whole();
}

/// What a tower alone would say of itself ("model.n_head = 3 ..."), in the words of the section
/// that it is in.
std::vector<KeyProblem> within(const std::string& section, std::vector<KeyProblem> problems);

}  // namespace choir
