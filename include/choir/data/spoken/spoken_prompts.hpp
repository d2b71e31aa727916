#pragma once
// Real speech: the prompts of the Asterisk telephone exchange as Debian packages them (one speaker,
// 8 kHz, CC-BY-SA-3.0), with their transcripts.
#include <cstdint>
#include <string>
#include <vector>

#include "choir/data/spoken/spoken_corpus.hpp"

namespace choir {

struct PromptOptions {
  /// Of asterisk-core-sounds-en-wav.
  std::string sounds = "/usr/share/asterisk/sounds/en_US_f_Allison";
  /// Of asterisk-core-sounds-en; plain text too.
  std::string transcripts = "/usr/share/doc/asterisk-core-sounds-en/core-sounds-en.txt.gz";
  std::uint64_t seed = 1;
};

/// Local. The corpus of what is speech; the manifests name the installed sound files. A tenth of
/// the different texts validates, so prompts with the same words are in one part. Throws DataError:
/// files missing (names the packages). Transcripts without a sound are left out and named in the
/// note.
CorpusReport asterisk_corpus(const std::string& folder, const PromptOptions& options);

}  // namespace choir
