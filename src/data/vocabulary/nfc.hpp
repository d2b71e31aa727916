#pragma once
// Unicode's normal form C (utf8proc), which Qwen's tokenizers apply before everything else.
#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace choir {

/// True if this build can normalise.
bool have_nfc();

/// Text in normal form C, with a map of positions back to the original.
class NfcText {
 public:
  /// `text` must be UTF-8 and outlive this object. Throws DataError in a build without utf8proc if
  /// the text is not in normal form.
  explicit NfcText(std::string_view text);
  std::string_view text() const { return changed_ ? std::string_view(normal_) : original_; }

  /// The position in the original that corresponds to `at` in text(), or npos if `at` is inside a
  /// stretch that was normalised as one.
  std::size_t original_place(std::size_t at) const;
  static constexpr std::size_t npos = std::string_view::npos;

 private:
  struct Anchor {
    std::size_t original, normal;
  };
  std::string_view original_;
  std::string normal_;
  bool changed_ = false;
  /// Between two anchors, either nothing was changed or everything was normalised together.
  std::vector<Anchor> anchors_;
};

/// The longest part at the front of `text`, which must be UTF-8, whose normal form does not depend
/// on what follows.
std::size_t nfc_certain_end(std::string_view text);

std::string nfc(std::string_view text);

}  // namespace choir
