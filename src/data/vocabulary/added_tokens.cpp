#include "src/data/vocabulary/added_tokens.hpp"

#include <algorithm>

#include "choir/core/error.hpp"
#include "src/data/vocabulary/utf8_scan.hpp"

namespace choir {
namespace {

bool word_at(const Utf8Scan& scan, std::size_t at) {
  return at < scan.size() && (scan.at(at).classes & kWord);
}

}  // namespace

AddedTokenFinder::AddedTokenFinder(std::vector<AddedToken> tokens) : tokens_(std::move(tokens)) {
  std::stable_sort(tokens_.begin(), tokens_.end(),
                   [](const AddedToken& a, const AddedToken& b) { return a.content < b.content; });
  for (const AddedToken& token : tokens_) {
    CHOIR_CHECK(!token.content.empty(), "an added token without content");
    ++first_byte_[static_cast<unsigned char>(token.content.front()) + 1u];
    longest_ = std::max(longest_, token.content.size());
  }
  for (std::size_t byte = 1; byte < first_byte_.size(); ++byte)
    first_byte_[byte] += first_byte_[byte - 1];
}

// Tokens that share a prefix are neighbours, the shortest first: each further byte of the text
// narrows the range of those that still match.
const AddedToken* AddedTokenFinder::longest_at(std::string_view text, std::size_t at) const {
  const auto byte_at = [&](std::size_t i) { return static_cast<unsigned char>(text[i]); };
  auto first = tokens_.begin() + first_byte_[byte_at(at)];
  auto last = tokens_.begin() + first_byte_[byte_at(at) + 1u];
  const AddedToken* longest = nullptr;
  for (std::size_t length = 1; first != last; ++length) {
    while (first != last && first->content.size() == length) longest = &*first++;
    if (first == last || at + length == text.size()) break;
    const unsigned char next = byte_at(at + length);
    const auto byte_of = [&](const AddedToken& token) {
      return static_cast<unsigned char>(token.content[length]);
    };
    first = std::partition_point(first, last, [&](const auto& t) { return byte_of(t) < next; });
    last = std::partition_point(first, last, [&](const auto& t) { return byte_of(t) == next; });
  }
  return longest;
}

std::vector<AddedTokenFinder::Match> AddedTokenFinder::find(std::string_view text,
                                                            bool special) const {
  std::vector<Match> matches;
  if (tokens_.empty()) return matches;
  const Utf8Scan scan(text);
  std::size_t done = 0;  // end of the previous match, including its blanks
  for (std::size_t at = 0; at < text.size();) {
    const AddedToken* found = longest_at(text, at);
    if (found == nullptr) {
      ++at;
      continue;
    }
    const AddedToken& token = *found;
    const std::size_t from = at, token_end = at + token.content.size();
    at = token_end;
    if (token.special && !special) continue;
    if (token.single_word && (word_before(text, from) || word_at(scan, token_end))) continue;
    Match match{token.id, from, token_end, from};
    if (token.lstrip)
      while (match.begin > done) {
        const std::size_t previous = previous_character(text, match.begin);
        if ((scan.at(previous).classes & kBlank) == 0) break;
        match.begin = previous;
      }
    if (token.rstrip) match.end = scan.past(token_end, kBlank);
    at = done = match.end;
    matches.push_back(match);
  }
  return matches;
}

}  // namespace choir
