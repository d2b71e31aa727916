#include "choir/app/transcript_report.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <cstdio>
#include <fstream>

#include "choir/core/error.hpp"
#include "choir/core/plural.hpp"
#include "choir/data/text/edit_distance.hpp"

namespace choir {
namespace {

/// Edit distances need memory of one text times the other.
bool comparable(const std::string& a, const std::string& b) {
  constexpr std::size_t kMostPairs = std::size_t{1} << 30;
  return (a.size() + 1) * (b.size() + 1) <= kMostPairs;
}

}  // namespace

void write_transcripts(const std::string& path, const std::vector<TranscriptRequest>& requests,
                       const std::vector<Transcript>& transcripts) {
  std::ofstream file(path, std::ios::binary);
  for (std::size_t i = 0; i < requests.size(); ++i)
    file << transcript_line(requests[i], transcripts[i]) << '\n';
  file.close();
  if (!file) throw StorageError(fmt::format("cannot write '{}'", path), "name another --out");
}

std::string error_rates(const std::vector<TranscriptRequest>& requests,
                        const std::vector<Transcript>& transcripts) {
  EditCounts words, letters;
  std::int64_t too_long = 0;
  for (std::size_t i = 0; i < requests.size(); ++i) {
    if (!requests[i].text || !transcripts[i].fault.empty()) continue;
    if (!comparable(*requests[i].text, transcripts[i].text)) {
      ++too_long;
      continue;
    }
    words += word_edits(*requests[i].text, transcripts[i].text);
    letters += character_edits(*requests[i].text, transcripts[i].text);
  }
  std::string text;
  if (words.utterances > 0)
    text = fmt::format("WER {}\nCER {}\n", to_string(words, "words"),
                       to_string(letters, "characters"));
  if (too_long > 0) text += fmt::format("{} texts are too long to be compared\n", too_long);
  return text;
}

void require_any(const std::vector<TranscriptRequest>& requests,
                 const std::vector<Transcript>& transcripts) {
  const auto good = [](const Transcript& t) { return t.fault.empty(); };
  if (transcripts.empty() || std::ranges::any_of(transcripts, good)) return;
  throw DataError(fmt::format("{}: {}", requests.front().place, transcripts.front().fault),
                  fmt::format("none of {} recordings could be read: nothing remains to transcribe",
                              transcripts.size()));
}

void print_texts(const std::vector<TranscriptRequest>& requests,
                 const std::vector<Transcript>& transcripts, bool json, bool texts) {
  for (std::size_t i = 0; i < requests.size(); ++i) {
    const Transcript& t = transcripts[i];
    if (json)
      fmt::print("{}\n", transcript_json(requests[i], t));
    else if (texts && t.fault.empty())
      fmt::print("{}: {}\n", requests[i].place, t.text);
    if (!t.fault.empty())
      fmt::print(stderr, "choir: {}: left out: {}\n", requests[i].place, t.fault);
    if (!t.note.empty()) fmt::print(stderr, "choir: {}: {}\n", requests[i].place, t.note);
  }
}

std::string speed_of(const std::vector<Transcript>& transcripts, double seconds) {
  double audio = 0;
  std::int64_t bad = 0;
  for (const Transcript& t : transcripts) {
    bad += !t.fault.empty();
    audio += t.fault.empty() ? t.seconds : 0;
  }
  const std::int64_t good = std::ssize(transcripts) - bad;
  return fmt::format(
      "transcribed {} recording{}, {:.1f} s of audio in {:.2f} s: {:.1f} times real time "
      "(real-time factor {:.5f}){}\n",
      good, plural(good), audio, seconds, audio / seconds, audio > 0 ? seconds / audio : 0.0,
      bad > 0 ? fmt::format("; {} left out", bad) : "");
}

}  // namespace choir
