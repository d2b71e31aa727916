#pragma once
// The corpora of `choir prepare corpus`: the plans of the synthetic ones, which are pure functions
// of (seed, index), and a corpus of real speech.
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "src/data/corpora/spoken_corpus.hpp"

namespace choir {

struct SpokenOptions {
  double hours = 0;
  std::uint64_t seed = 1;
};

/// The voices of espeak-ng in all corpora: nine for training, and two that training never uses.
const std::vector<std::string>& spoken_voices();
const std::vector<std::string>& unseen_voices();

/// Clauses of `book` (spoken_clauses with its default rule) in a keyed permutation; after the last
/// one they are repeated with other voices. A tenth of them is held out: half of those by known
/// voices (val), half by unseen ones (val_voices). 130 to 190 words a minute, pitch 30 to 70, noise
/// at 15 to 35 dB. Throws DataError if the book has no such clauses.
SpokenPlan spoken_book_plan(std::string_view book, const SpokenOptions& options);

/// The same clauses by one constant voice (en-us, 150 words a minute) without noise: the voice of
/// an agent, which a codec learns. A tenth of them validates (val).
SpokenPlan spoken_voice_plan(std::string_view book, const SpokenOptions& options);

/// One to four digits in words, by all voices, varied as above. A tenth of the utterances validates
/// (val): strings of two or more digits that never occur in training.
SpokenPlan spoken_digits_plan(const SpokenOptions& options);

/// Local. The King James Bible of Debian's bible-kjv, one verse a line, with its reference ("Ge1:1
/// In the beginning ...") or without. Both throw a DataError that names the package if it is not
/// installed.
std::string kjv_verses();
std::string kjv_text();

struct PromptOptions {
  /// From the package asterisk-core-sounds-en-wav.
  std::string sounds = "/usr/share/asterisk/sounds/en_US_f_Allison";
  /// From the package asterisk-core-sounds-en; plain text is accepted, too.
  std::string transcripts = "/usr/share/doc/asterisk-core-sounds-en/core-sounds-en.txt.gz";
  std::uint64_t seed = 1;
};

/// Local. The corpus of those prompts that are speech; the manifests name the installed sound
/// files. A tenth of the distinct texts validates, so prompts with the same words are in one part.
/// Throws a DataError that names the packages if files are missing. Transcripts without a sound
/// file are skipped and listed in the note.
CorpusReport asterisk_corpus(const std::string& folder, const PromptOptions& options);

}  // namespace choir
