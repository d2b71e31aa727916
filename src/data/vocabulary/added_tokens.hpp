#pragma once
// Added tokens are found in the text before it is cut into pieces: control tokens such as
// <|endoftext|>, and words that were added to a finished vocabulary.
#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace choir {

struct AddedToken {
  std::int32_t id = 0;
  std::string content;
  bool single_word = false;  ///< only where no \w stands beside it
  bool lstrip = false;       ///< takes the blanks in front along
  bool rstrip = false;       ///< and those behind
  bool normalized = false;   ///< is looked for in the normalised text, by its own normal form
  bool special = false;      ///< controls the model; left out of decoded text where that is wanted
};

/// Looks for tokens in texts. It needs little more memory than the tokens themselves, however many
/// and long they are.
class AddedTokenFinder {
 public:
  struct Match {
    std::int32_t id = 0;
    std::size_t begin = 0, end = 0;  ///< with the blanks that it takes along
    std::size_t from = 0;            ///< where the token itself begins
  };

  AddedTokenFinder() = default;
  /// Tokens by their `content`. Of two with the same content the later one counts.
  explicit AddedTokenFinder(std::vector<AddedToken> tokens);
  bool empty() const { return tokens_.empty(); }
  std::size_t longest() const { return longest_; }

  /// All matches in `text`, which must be UTF-8: from the left the longest token at each place,
  /// without overlaps. With `special` unset special tokens are text like any other.
  std::vector<Match> find(std::string_view text, bool special) const;

 private:
  /// The longest token that matches at `at`; nullptr: none.
  const AddedToken* longest_at(std::string_view text, std::size_t at) const;

  std::vector<AddedToken> tokens_;               ///< in the order of their contents
  std::array<std::uint32_t, 257> first_byte_{};  ///< where the tokens begin that begin with it
  std::size_t longest_ = 0;
};

}  // namespace choir
