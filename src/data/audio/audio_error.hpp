#pragma once
// Faults of an utterance: the kinds that reports count, the error that carries one, and the
// reaction of a run to bad data.
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "choir/core/error.hpp"

namespace choir {

enum class AudioFault {
  not_json,        ///< a line of a manifest is not JSON
  not_utf8,        ///< a text is not UTF-8
  bad_line,        ///< a key is missing, of the wrong type or impossible
  refused,         ///< the kind of a cut or source is not supported
  missing_file,    ///< no such file, or no permission
  missing_member,  ///< the archive does not contain the file
  unreadable,      ///< damaged, or not audio
  empty,           ///< the file or member has 0 bytes
  zero_length,     ///< the audio has no samples
  not_finite,      ///< some samples are NaN or infinite
  too_short,       ///< the audio ends before offset + duration
  wrong_duration,  ///< the length differs from that in the manifest
  wrong_rate,      ///< the sample rate differs from that in the manifest
  channels,  ///< there are several channels and none was chosen, or the chosen one does not exist
};
/// The name in reports, for example "missing file".
std::string_view name_of(AudioFault fault);

/// The hint to a recording whose file is damaged or was cut off.
inline constexpr const char* kDamageRemedy =
    "the file is damaged or was cut off: copy or encode it again from its source";

class AudioError : public DataError {
 public:
  AudioError(AudioFault fault, const std::string& what, const std::string& hint = {})
      : DataError(what, hint), fault_(fault) {}
  AudioFault fault() const { return fault_; }

 private:
  AudioFault fault_;
};

/// The bad ones among utterances or recordings: all are counted, and the first ones are named.
class BadList {
 public:
  /// `cause` is a sentence; an error adds its kind and its hint.
  void add(const std::string& place, const std::string& cause, const std::string& hint);
  void add(const std::string& place, const AudioError& error);

  std::int64_t count() const { return count_; }
  /// At most four of them, "PLACE: CAUSE".
  const std::vector<std::string>& named() const { return named_; }
  /// Throws the DataError that names them: the only one alone, or "3 of 4 THINGs WHERE are bad" and
  /// a line each. `remedy` follows the hints to the causes.
  [[noreturn]] void refuse(std::int64_t of, const char* thing, const std::string& remedy,
                           const std::string& where = {}) const;

 private:
  std::int64_t count_ = 0;
  std::vector<std::string> named_, hints_;  // each hint once
};

/// The remedy of commands whose --on-bad skip has no bound.
inline constexpr const char* kSkipsBad = "--on-bad skip leaves such recordings out";

/// Reaction to a bad utterance or recording: the run stops, or leaves it out, counts and names it.
enum class OnBad { stop, skip };
/// Throws DeckError for a name other than "stop" and "skip". `option` is the option that the user
/// set, "data.on_bad" or "--on-bad".
OnBad on_bad_of(std::string_view name, std::string_view option);

}  // namespace choir
