#include "src/data/audio/audio_error.hpp"

#include "choir/core/error.hpp"

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

OnBad on_bad_of(std::string_view name, std::string_view option) {
  if (name == "stop") return OnBad::stop;
  if (name == "skip") return OnBad::skip;
  throw DeckError(fmt::format("{} is '{}'", option, name), "stop or skip");
}

}  // namespace choir
