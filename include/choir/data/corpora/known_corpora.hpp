#pragma once
// The corpora of `choir prepare corpus`: what the synthetic ones say and how, as pure functions of
// (seed, index), and real speech.
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "choir/data/corpora/spoken_corpus.hpp"

namespace choir {

struct SpokenOptions {
  double hours = 0;
  std::uint64_t seed = 1;
};

/// The voices of espeak-ng that all corpora use: nine that train, and two that never do.
const std::vector<std::string>& spoken_voices();
const std::vector<std::string>& unseen_voices();

/// Clauses of `book` (spoken_clauses with its default rule) in a keyed permutation; when all are
/// spoken, again with other voices. A tenth of them is never trained on: half of those by known
/// voices (val), half by unseen ones (val_voices). 130 to 190 words a minute, pitch 30 to 70, noise
/// at 15 to 35 dB. Throws DataError when the book has no such clauses.
SpokenPlan spoken_book_plan(std::string_view book, const SpokenOptions& options);

/// The same clauses in one voice that always speaks alike (en-us, 150 words a minute), and without
/// noise: what an agent speaks with, and what a codec is to learn. A tenth of them validates (val).
SpokenPlan spoken_voice_plan(std::string_view book, const SpokenOptions& options);

/// One to four digits in words, by all voices, varied as above. A tenth of the utterances validates
/// (val): strings of two or more digits that training never says.
SpokenPlan spoken_digits_plan(const SpokenOptions& options);

/// Local. The King James Bible of Debian's bible-kjv, one verse a line behind its reference ("Ge1:1
/// In the beginning ..."), or without. Throw DataError when it is not there (names the package).
std::string kjv_verses();
std::string kjv_text();

struct PromptOptions {
  /// From the package asterisk-core-sounds-en-wav.
  std::string sounds = "/usr/share/asterisk/sounds/en_US_f_Allison";
  /// From the package asterisk-core-sounds-en; plain text will do, too.
  std::string transcripts = "/usr/share/doc/asterisk-core-sounds-en/core-sounds-en.txt.gz";
  std::uint64_t seed = 1;
};

/// Local. The corpus of what is speech; the manifests name the installed sound files. A tenth of
/// the different texts validates, so prompts with the same words are in one part. Throws DataError:
/// files missing (names the packages). Transcripts without a sound are left out and named in the
/// note.
CorpusReport asterisk_corpus(const std::string& folder, const PromptOptions& options);

}  // namespace choir
