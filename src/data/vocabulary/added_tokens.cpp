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

void AddedTokenFinder::add(const AddedToken& token, std::string_view content) {
  CHOIR_CHECK(!content.empty(), "an added token without content");
  std::int32_t node = 0;
  for (const char c : content) {
    const auto byte = static_cast<unsigned char>(c);
    std::int32_t next = child(node, byte);
    if (next < 0) {
      next = static_cast<std::int32_t>(nodes_.size());
      nodes_.emplace_back();
      nodes_[static_cast<std::size_t>(node)].next.emplace_back(byte, next);
    }
    node = next;
  }
  nodes_[static_cast<std::size_t>(node)].token = static_cast<std::int32_t>(tokens_.size());
  tokens_.push_back({token.id, token.single_word, token.lstrip, token.rstrip, token.special});
  begins_[static_cast<unsigned char>(content.front())] = true;
  longest_ = std::max(longest_, content.size());
}

std::int32_t AddedTokenFinder::child(std::int32_t node, unsigned char byte) const {
  for (const auto& [label, next] : nodes_[static_cast<std::size_t>(node)].next)
    if (label == byte) return next;
  return -1;
}

std::pair<std::int32_t, std::size_t> AddedTokenFinder::longest_at(std::string_view text,
                                                                  std::size_t at) const {
  std::pair<std::int32_t, std::size_t> best{-1, at};
  std::int32_t node = 0;
  while (at < text.size()) {
    node = child(node, static_cast<unsigned char>(text[at]));
    if (node < 0) break;
    ++at;
    if (const std::int32_t token = nodes_[static_cast<std::size_t>(node)].token; token >= 0)
      best = {token, at};
  }
  return best;
}

std::vector<AddedTokenFinder::Match> AddedTokenFinder::find(std::string_view text,
                                                            bool special) const {
  std::vector<Match> matches;
  if (tokens_.empty()) return matches;
  const Utf8Scan scan(text);
  std::size_t done = 0;  // what a match before took along
  for (std::size_t at = 0; at < text.size();) {
    if (!begins_[static_cast<unsigned char>(text[at])]) {
      ++at;
      continue;
    }
    const auto [number, token_end] = longest_at(text, at);
    if (number < 0) {
      ++at;
      continue;
    }
    const std::size_t from = at;
    at = token_end;
    const Token& token = tokens_[static_cast<std::size_t>(number)];
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
