#include "src/data/audio/audio_error.hpp"

#include <fmt/core.h>

#include <algorithm>

#include "choir/core/error.hpp"
#include "src/core/quantities.hpp"
#include "src/core/text.hpp"

namespace choir {

std::string_view name_of(AudioFault fault) {
  switch (fault) {
    case AudioFault::not_json:
      return "not JSON";
    case AudioFault::not_utf8:
      return "not UTF-8";
    case AudioFault::bad_line:
      return "bad line";
    case AudioFault::refused:
      return "refused kind";
    case AudioFault::missing_file:
      return "missing file";
    case AudioFault::missing_member:
      return "missing from its archive";
    case AudioFault::unreadable:
      return "unreadable";
    case AudioFault::empty:
      return "empty file";
    case AudioFault::zero_length:
      return "zero length";
    case AudioFault::not_finite:
      return "NaN or infinite samples";
    case AudioFault::too_short:
      return "ends too early";
    case AudioFault::wrong_duration:
      return "wrong duration";
    case AudioFault::wrong_rate:
      return "wrong sample rate";
    case AudioFault::channels:
      return "no channel chosen";
  }
  return "unknown";
}

void BadList::add(const std::string& place, const std::string& cause, const std::string& hint) {
  constexpr std::size_t kMostNamed = 4;
  ++count_;
  if (named_.size() == kMostNamed) return;
  named_.push_back(fmt::format("{}: {}", place, cause));
  if (!hint.empty() && std::ranges::find(hints_, hint) == hints_.end()) hints_.push_back(hint);
}

void BadList::add(const std::string& place, const AudioError& error) {
  add(place, fmt::format("{}: {}", name_of(error.fault()), error.what()), error.hint());
}

void BadList::refuse(std::int64_t of, const char* thing, const std::string& remedy,
                     const std::string& where) const {
  std::vector<std::string> hints = hints_;
  if (!remedy.empty()) hints.push_back(remedy);
  if (count_ == 1) throw DataError(named_.front(), join(hints, "; "));
  const std::int64_t others = count_ - std::ssize(named_);
  throw DataError(
      fmt::format("{} of {}{} are bad:\n  {}{}", format_count(count_), counted(of, thing),
                  where.empty() ? "" : " " + where, join(named_, "\n  "),
                  others > 0 ? fmt::format("\n  and {} more", format_count(others)) : ""),
      join(hints, "; "));
}

OnBad on_bad_of(std::string_view name, std::string_view option) {
  if (name == "stop") return OnBad::stop;
  if (name == "skip") return OnBad::skip;
  throw DeckError(fmt::format("{} is '{}'", option, name), "stop or skip");
}

}  // namespace choir
