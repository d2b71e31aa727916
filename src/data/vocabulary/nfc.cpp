#include "src/data/vocabulary/nfc.hpp"

#include <algorithm>

#include "choir/core/error.hpp"
#include "choir_features.hpp"
#include "src/data/vocabulary/utf8.hpp"

#ifdef CHOIR_HAVE_UTF8PROC
#include <utf8proc.h>

#include <cstdlib>
#include <memory>
#endif

namespace choir {
namespace {

#ifdef CHOIR_HAVE_UTF8PROC
void append_normal(std::string& normal, std::string_view text) {
  utf8proc_uint8_t* result = nullptr;
  const utf8proc_ssize_t length =
      utf8proc_map(reinterpret_cast<const utf8proc_uint8_t*>(text.data()),
                   static_cast<utf8proc_ssize_t>(text.size()), &result,
                   static_cast<utf8proc_option_t>(UTF8PROC_STABLE | UTF8PROC_COMPOSE));
  const std::unique_ptr<utf8proc_uint8_t, decltype(&std::free)> owner(result, &std::free);
  if (length < 0)
    throw DataError(fmt::format("cannot normalise text: {}", utf8proc_errmsg(length)));
  normal.append(reinterpret_cast<const char*>(result), static_cast<std::size_t>(length));
}
#else
void append_normal(std::string&, std::string_view) {
  throw DataError("this text has to be normalised (NFC), which this build cannot do",
                  "install utf8proc (Debian: libutf8proc-dev) and build again");
}
#endif

constexpr unsigned kUnstable = kJoins | kChanges;

}  // namespace

bool have_nfc() {
#ifdef CHOIR_HAVE_UTF8PROC
  return true;
#else
  return false;
#endif
}

// Most text is in normal form already. Only stretches of characters that join or change are
// normalised, each together with the preceding character, with which it may combine.
NfcText::NfcText(std::string_view text) : original_(text) {
  const Utf8Scan scan(text);
  std::size_t done = 0;
  for (std::size_t at = scan.until(0, kUnstable); at < text.size();) {
    std::size_t begin = at;
    while (begin > done && (scan.at(begin).classes & kJoins))
      begin = previous_character(text, begin);
    // The normal form of a changing character may end in a character that combines with the next
    // one, so the stretch extends as long as characters join.
    std::size_t end = at;
    do {
      end += scan.at(end).length;
    } while (end < text.size() && (scan.at(end).classes & kUnstable));
    normal_.append(text.substr(done, begin - done));
    anchors_.push_back({begin, normal_.size()});
    append_normal(normal_, text.substr(begin, end - begin));
    anchors_.push_back({end, normal_.size()});
    changed_ = true;
    done = end;
    at = scan.until(end, kUnstable);
  }
  if (changed_) normal_.append(text.substr(done));
}

std::size_t NfcText::original_place(std::size_t at) const {
  if (!changed_) return at;
  const auto next = std::partition_point(anchors_.begin(), anchors_.end(),
                                         [&](const Anchor& one) { return one.normal <= at; });
  if (next == anchors_.begin()) return at;
  const Anchor& last = *(next - 1);
  if (last.normal == at) return last.original;
  const bool inside = (next - anchors_.begin()) % 2 != 0;
  return inside ? npos : last.original + (at - last.normal);
}

std::size_t nfc_certain_end(std::string_view text) {
  const Utf8Scan scan(text);
  std::size_t end = text.size();
  while (end > 0) {
    end = previous_character(text, end);
    if ((scan.at(end).classes & kJoins) == 0) break;
  }
  return end;
}

std::string nfc(std::string_view text) {
  return std::string(NfcText(text).text());
}

}  // namespace choir
