#pragma once
// What can be wrong with an utterance: the kinds that reports count, the error that carries one,
// and what bad data do to a run.
#include <string>
#include <string_view>

#include "choir/core/error.hpp"

namespace choir {

enum class AudioFault {
  not_json,        ///< a line of a manifest that is not JSON
  not_utf8,        ///< a text that is not UTF-8
  bad_line,        ///< a key is missing, of the wrong type or impossible
  refused,         ///< a kind of cut or source that is refused by name
  missing_file,    ///< no such file, or no permission
  missing_member,  ///< not in its archive
  unreadable,      ///< damaged, or no audio
  empty,           ///< a file or member of 0 bytes
  zero_length,     ///< audio without samples
  not_finite,      ///< NaN or infinite samples
  too_short,       ///< ends before offset + duration
  wrong_duration,  ///< not as long as the manifest says
  wrong_rate,      ///< not of the rate that the manifest says
  channels,        ///< several channels, and none chosen, or no such channel
};
/// As reports call it: "missing file".
std::string_view name_of(AudioFault fault);

class AudioError : public DataError {
 public:
  AudioError(AudioFault fault, const std::string& what, const std::string& hint = {})
      : DataError(what, hint), fault_(fault) {}
  AudioFault fault() const { return fault_; }

 private:
  AudioFault fault_;
};

/// A bad utterance or recording ends the run, or is left out, counted and named.
enum class OnBad { stop, skip };
/// Throws DeckError for a name that is none of "stop skip"; `option`: what the user wrote it for,
/// "data.on_bad" or "--on-bad".
OnBad on_bad_of(std::string_view name, std::string_view option);

}  // namespace choir
