#pragma once
// The file of a SentencePiece model (a ModelProto of protocol buffers): its pieces and what decides
// how text becomes them. Other programs have the same tables in other files. Local, all of it.
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace choir {

struct SentencePieceFile {
  enum class Kind : std::int32_t { normal = 1, unknown, control, user_defined, unused, byte };
  struct Piece {
    std::string text;  ///< with U+2581 for a blank
    float score = 0;
    Kind kind = Kind::normal;
  };
  enum class Model : std::int32_t { unigram = 1, bpe, word, character };

  std::vector<Piece> pieces;  ///< by id
  Model model = Model::unigram;
  bool byte_fallback = false;  ///< characters without a piece are written as those of their bytes
  bool blank_in_front = true;  ///< of a text, as if it stood in the middle of one
  bool squeezes_blanks = true;
  std::string charsmap;  ///< how text is normalised, in SentencePiece's own form; "": not at all

  /// Throws DataError with `source` and the place for bytes that are no such file, or lie.
  static SentencePieceFile parse(std::string_view bytes, const std::string& source);
  std::string bytes() const;
};

/// What Vocabulary::from_json() reads of such a file. `text_start`: texts begin with <s>, where the
/// model has it.
std::string sentencepiece_json(std::string_view bytes, bool text_start);
/// The file in it, or in what such a Vocabulary writes.
std::string sentencepiece_bytes(const std::string& json);

}  // namespace choir
