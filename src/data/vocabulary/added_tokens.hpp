#pragma once
// Added tokens are found in the text before it is cut into pieces: control tokens such as
// <|endoftext|>, and words that were added to a finished vocabulary.
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

/// A prefix tree of tokens.
class AddedTokenFinder {
 public:
  struct Match {
    std::int32_t id = 0;
    std::size_t begin = 0, end = 0;  ///< with the blanks that it takes along
    std::size_t from = 0;            ///< where the token itself begins
  };

  void add(const AddedToken& token, std::string_view content);
  bool empty() const { return tokens_.empty(); }
  std::size_t longest() const { return longest_; }

  /// All matches in `text`, which must be UTF-8: from the left the longest token at each place,
  /// without overlaps. With `special` unset special tokens are text like any other.
  std::vector<Match> find(std::string_view text, bool special) const;

 private:
  struct Token {
    std::int32_t id = 0;
    bool single_word = false, lstrip = false, rstrip = false, special = false;
  };
  struct Node {
    std::int32_t token = -1;
    std::vector<std::pair<unsigned char, std::int32_t>> next;
  };
  /// The token of the longest match at `at` and its end; -1: none.
  std::pair<std::int32_t, std::size_t> longest_at(std::string_view text, std::size_t at) const;
  std::int32_t child(std::int32_t node, unsigned char byte) const;

  std::vector<Node> nodes_ = std::vector<Node>(1);
  std::vector<Token> tokens_;
  std::vector<bool> begins_ = std::vector<bool>(256);
  std::size_t longest_ = 0;
};

}  // namespace choir
