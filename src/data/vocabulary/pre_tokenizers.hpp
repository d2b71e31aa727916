#pragma once
// Pre-tokenizers split text into the pieces that no merge of a byte-level BPE crosses. The regular
// expressions of published tokenizers are implemented by hand: each one is a function from the
// start of a piece to its end over the character classes of Unicode 16. It makes one pass and never
// backtracks.
#include <cstddef>
#include <optional>
#include <string_view>
#include <vector>

namespace choir {

enum class Splitter {
  gpt2,               ///< the expression of GPT-2: a blank belongs to the next word or number
  llama3,             ///< contractions in any case, numbers of at most three digits, lines
  qwen2,              ///< the same, but every digit is a piece
  tekken,             ///< a capital letter begins a piece, every digit is one (Mistral)
  o200k,              ///< the same with contractions and numbers of at most three digits
  digits,             ///< every character of \p{N} is a piece
  contiguous_digits,  ///< every run of \p{N} is a piece
  words,              ///< every blank, also one written as U+2581, begins a piece
};

/// The character that stands for a blank in vocabularies over characters.
inline constexpr std::string_view kBlankSign = "\u2581";
/// True for a blank in front, or with `or_sign` for that character.
bool begins_with_blank(std::string_view text, bool or_sign);

/// "gpt2", "llama3", "qwen2", "tekken" or "o200k".
std::string_view name_of(Splitter splitter);
/// The regular expression of a splitter with a name; "" for the others.
std::string_view expression_of(Splitter splitter);
/// std::nullopt for an unknown expression.
std::optional<Splitter> splitter_of_expression(std::string_view expression);

/// The end of the piece that begins at `at`. `text` must be UTF-8, at < its size. The text before
/// `at` has no influence. Behind the end at most one character has, or a run of blanks up to the
/// next character, or the three bytes of a contraction.
std::size_t piece_end(Splitter splitter, std::string_view text, std::size_t at);

/// The position up to which the text decides about the piece that ends at `end`: `end`, or for
/// tekken and o200k the end of the letters behind it.
std::size_t decided_by(Splitter splitter, std::string_view text, std::size_t end);

/// A list of splitters; each one splits the pieces of the one before. With an empty list the whole
/// text is one piece.
class PreTokenizer {
 public:
  PreTokenizer() = default;
  explicit PreTokenizer(std::vector<Splitter> splitters) : splitters_(std::move(splitters)) {}
  const std::vector<Splitter>& splitters() const { return splitters_; }

  /// Calls use(piece) for every piece of `text`, which must be UTF-8.
  template <class Use>
  void split(std::string_view text, const Use& use) const {
    split_from(0, text, use);
  }
  /// The same if more text may follow: only the pieces at the front that do not depend on it. The
  /// caller gives the remaining text again.
  template <class Use>
  void split_part(std::string_view text, const Use& use) const {
    split_part_from(0, text, certain_end(text), use);
  }
  std::vector<std::string_view> pieces(std::string_view text) const;

 private:
  static std::size_t certain_end(std::string_view text);

  template <class Use>
  void split_from(std::size_t step, std::string_view text, const Use& use) const {
    if (text.empty()) return;
    if (step == splitters_.size()) {
      use(text);
      return;
    }
    const bool last = step + 1 == splitters_.size();
    for (std::size_t at = 0; at < text.size();) {
      const std::size_t end = piece_end(splitters_[step], text, at);
      const std::string_view piece = text.substr(at, end - at);
      if (last) {
        use(piece);
      } else {
        split_from(step + 1, piece, use);
      }
      at = end;
    }
  }

  template <class Use>
  void split_part_from(std::size_t step, std::string_view text, std::size_t certain,
                       const Use& use) const {
    if (step == splitters_.size()) return;
    for (std::size_t at = 0; at < text.size();) {
      const std::size_t end = piece_end(splitters_[step], text, at);
      // The digit splitters look ahead by one character only. Text without digits may be long, but
      // the next splitters find ends in it.
      const bool digits =
          splitters_[step] == Splitter::digits || splitters_[step] == Splitter::contiguous_digits;
      if (digits && end == text.size() && at < certain)
        return split_part_from(step + 1, text.substr(at), certain - at, use);
      if (digits ? end == text.size() : decided_by(splitters_[step], text, end) > certain) return;
      split_from(step + 1, text.substr(at, end - at), use);
      at = end;
    }
  }

  std::vector<Splitter> splitters_;
};

}  // namespace choir
