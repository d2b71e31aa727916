#pragma once
// The file of a SentencePiece model (a ModelProto of protocol buffers): its pieces and the rules
// that turn text into them. Other programs store the same tables in other files. All functions are
// local.

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
  bool byte_fallback = false;  ///< a character without a piece becomes the pieces of its bytes
  bool blank_in_front = true;  ///< a blank is added in front of a text
  bool squeezes_blanks = true;
  std::string charsmap;  ///< rules of normalisation in SentencePiece's own format; "": none

  /// Throws DataError with `source` and the byte position if the bytes are not such a file or
  /// contradict themselves.
  static SentencePieceFile parse(std::string_view bytes, const std::string& source);
  std::string bytes() const;
};

/// The JSON of such a file that Vocabulary::from_json() reads. `text_start`: texts begin with <s>
/// if the model has this piece. `shares_blank`: a blank with which a text begins is the blank that
/// is added in front of it; SentencePiece itself adds another one. `blank_at_start_only`: none is
/// added in front of text behind a control token.
std::string sentencepiece_json(std::string_view bytes, bool text_start, bool shares_blank = false,
                               bool blank_at_start_only = false);
/// The model file contained in such a JSON, or in the JSON that such a Vocabulary writes.
std::string sentencepiece_bytes(const std::string& json);

/// True for a tokenizer.json with byte_fallback, which is one made from a SentencePiece model. It
/// does not parse the text.
bool is_metaspace_bpe(std::string_view json);
/// The JSON, as sentencepiece_json() returns it, of the SentencePiece model with the same ids. The
/// pieces of a text are joined in the order of the merges. Throws DataError for rules that such a
/// model does not have, but returns "" if BpeTokenizer may have them: for a pre-tokenizer Metaspace
/// without a normalizer, as the library tokenizers trains it.
std::string sentencepiece_of_metaspace_bpe(std::string_view json, const std::string& source);

}  // namespace choir
