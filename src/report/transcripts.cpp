#include "src/report/transcripts.hpp"

#include <fmt/core.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <fstream>

#include "choir/core/error.hpp"
#include "src/core/json_value.hpp"
#include "src/core/output.hpp"
#include "src/core/quantities.hpp"
#include "src/data/audio/transcript_form.hpp"
#include "src/data/metrics/edit_distance.hpp"

namespace choir {
namespace {

/// True if the texts can be compared: edit distances need memory proportional to the product of
/// their lengths.
bool comparable(const std::string& a, const std::string& b) {
  constexpr std::size_t kMostPairs = std::size_t{1} << 30;
  return (a.size() + 1) * (b.size() + 1) <= kMostPairs;
}

/// The columns of a line on a terminal; longer text could not be overwritten.
constexpr std::size_t kColumns = 78;

double milliseconds(const FastConformerConfig& config, std::int64_t samples) {
  return 1e3 * static_cast<double>(samples) / static_cast<double>(config.mel.sample_rate);
}

/// The quantile at `part` by nearest rank.
double nearest_quantile(std::vector<double>& values, double part) {
  const auto rank = static_cast<std::size_t>(part * static_cast<double>(values.size() - 1) + 0.5);
  const auto at = values.begin() + static_cast<std::ptrdiff_t>(rank);
  std::nth_element(values.begin(), at, values.end());
  return *at;
}

/// The end of a UTF-8 text, starting at a character.
std::string last_columns(const std::string& text, std::size_t columns) {
  if (text.size() <= columns) return text;
  std::size_t at = text.size() - columns;
  while (at < text.size() && (static_cast<unsigned char>(text[at]) & 0xc0u) == 0x80u) ++at;
  return text.substr(at);
}

}  // namespace

namespace {

/// The name of a recording in files of scoring tools: its id, or the name of its file.
std::string scored_name(const TranscriptRequest& request) {
  nlohmann::json line;
  try {
    if (!request.line.empty()) line = read_json_line(request.line, request.place);
  } catch (const DataError&) {  // the line is reported as bad
  }
  if (line.is_object() && line.contains("id") && line["id"].is_string())
    return line["id"].get<std::string>();
  return std::filesystem::path(request.source.path).stem().string();
}

/// Lines of NIST's CTM: name, channel, begin, duration, word.
std::string ctm_lines(const TranscriptRequest& request, const Transcript& transcript) {
  std::string lines;
  const std::string name = scored_name(request);
  const int channel = std::max(0, request.source.channel.value) + 1;
  for (const SpokenWord& word : transcript.words)
    lines += fmt::format("{} {} {:.3f} {:.3f} {}\n", name, channel, word.start,
                         word.end - word.start, word.text);
  return lines;
}

/// The time of a subtitle: "00:01:02,345", with '.' in WebVTT.
std::string subtitle_time(double seconds, char point) {
  const auto all = std::llround(1000 * std::max(0.0, seconds));
  return fmt::format("{:02}:{:02}:{:02}{}{:03}", all / 3'600'000, all / 60'000 % 60,
                     all / 1000 % 60, point, all % 1000);
}

/// Subtitles of at most two lines of usual length, which end at pauses; `point` as above.
std::string subtitles(const Transcript& transcript, char point) {
  constexpr std::size_t kMostLetters = 80;
  constexpr double kLongest = 6, kPause = 0.8;  // seconds
  std::string lines, text;
  double begin = 0, end = 0;
  int number = 0;
  const auto finish = [&] {
    if (!text.empty())
      lines += fmt::format("{}\n{} --> {}\n{}\n\n", ++number, subtitle_time(begin, point),
                           subtitle_time(end, point), text);
    text.clear();
  };
  for (const SpokenWord& word : transcript.words) {
    if (text.size() + word.text.size() >= kMostLetters || word.end - begin > kLongest ||
        word.start - end > kPause)
      finish();
    if (text.empty()) begin = word.start;
    text += (text.empty() ? "" : " ") + word.text;
    end = word.end;
  }
  finish();
  return lines;
}

}  // namespace

bool is_subtitles(const std::string& path) {
  return path.ends_with(".srt") || path.ends_with(".vtt");
}

std::string wrong_transcripts_name(const std::string& path) {
  const std::string extension = std::filesystem::path(path).extension().string();
  constexpr std::array kKnown{"", ".json", ".jsonl", ".ctm", ".trn", ".srt", ".vtt", ".txt"};
  if (std::ranges::find(kKnown, extension) != kKnown.end()) return {};
  return fmt::format("--out {}: transcripts are not written in the format '{}'", path, extension);
}

void write_transcripts(const std::string& path, const std::vector<TranscriptRequest>& requests,
                       const std::vector<Transcript>& transcripts) {
  std::ofstream file(path, std::ios::binary);
  for (std::size_t i = 0; i < requests.size(); ++i) {
    if (path.ends_with(".ctm"))
      file << ctm_lines(requests[i], transcripts[i]);
    else if (path.ends_with(".trn"))
      file << transcripts[i].text << " (" << scored_name(requests[i]) << ")\n";
    else if (path.ends_with(".srt"))
      file << subtitles(transcripts[i], ',');
    else if (path.ends_with(".vtt"))
      file << "WEBVTT\n\n" << subtitles(transcripts[i], '.');
    else if (path.ends_with(".txt"))
      file << transcripts[i].text << '\n';
    else
      file << transcript_line(requests[i], transcripts[i]) << '\n';
  }
  file.close();
  if (!file) throw StorageError(fmt::format("cannot write '{}'", path), "choose another --out");
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
  if (words.utterances > 0 && words.reference() == 0)
    text =
        fmt::format("no error rates: {} without a word\n", counted(words.utterances, "reference"));
  else if (words.utterances > 0)
    text = fmt::format("WER {}\nCER {}\n", to_string(words, "words"),
                       to_string(letters, "characters"));
  const auto other = std::ranges::find_if(
      requests, [](const TranscriptRequest& request) { return !request.text_key.empty(); });
  if (words.utterances == 0 && other != requests.end())
    text = fmt::format(
        "no error rates: references are in \"{}\", which NeMo calls \"text\": `choir prepare "
        "manifest IN --out OUT` renames it\n",
        other->text_key);
  if (too_long > 0) text += fmt::format("{} texts are too long to compare\n", too_long);
  return text;
}

std::string unwritable_references(const Vocabulary& units, const std::string& manifest,
                                  const std::vector<TranscriptRequest>& requests) {
  UnwritableTexts unwritable(units);
  std::int64_t references = 0;
  for (const TranscriptRequest& request : requests) {
    if (!request.text) continue;
    ++references;
    unwritable.add(*request.text);
  }
  if (unwritable.count() == 0) return {};
  const std::string command = unwritable.command(manifest);
  const std::int64_t remain = unwritable.remaining();
  return fmt::format(
      "note: {} of {} {} characters that the model cannot write, and their words "
      "count as errors: {}\n{}",
      format_count(unwritable.count()), counted(references, "reference"),
      unwritable.count() == 1 ? "has" : "have", unwritable.characters(),
      command.empty() ? ""
                      : fmt::format("`{}` writes references that it can{}\n", command,
                                    remain == 0 ? "" : fmt::format(", except for {}", remain)));
}

void require_any(const std::vector<TranscriptRequest>& requests,
                 const std::vector<Transcript>& transcripts) {
  const auto good = [](const Transcript& t) { return t.fault.empty(); };
  if (transcripts.empty() || std::ranges::any_of(transcripts, good)) return;
  throw DataError(fmt::format("{}: {}", requests.front().place, transcripts.front().fault),
                  fmt::format("none of {} recordings could be read: nothing remains to transcribe",
                              transcripts.size()));
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
      bad > 0 ? fmt::format("; {} skipped", bad) : "");
}

PartialText::PartialText(std::vector<std::string> names, bool shows, bool lines)
    : names_(std::move(names)),
      lines_(shows && lines),
      // Launchers give ranks a terminal for output, but none for input.
      in_place_(shows && !lines && isatty(STDOUT_FILENO) == 1 && isatty(STDIN_FILENO) == 1) {}

PartialText::~PartialText() {
  if (!written_) return;
  fmt::print("\r{}\r", std::string(kColumns, ' '));
  std::fflush(stdout);
}

StreamTranscriber::Heard PartialText::heard() {
  if (!lines_ && !in_place_) return {};
  return [this](std::size_t source, double seconds, const std::string& newest) {
    show(source, seconds, newest);
  };
}

void PartialText::show(std::size_t source, double seconds, const std::string& newest) {
  const std::string line =
      printable_name(fmt::format("{} {:.2f} s: {}", names_[source], seconds, newest));
  if (lines_) {
    fmt::print("{}\n", line);
  } else {
    std::string shown = last_columns(line, kColumns);
    shown.resize(std::max(shown.size(), kColumns), ' ');
    fmt::print("\r{}", shown);
    written_ = true;
  }
  std::fflush(stdout);
}

std::string stream_summary(const FastConformerConfig& config,
                           const std::vector<Transcript>& transcripts) {
  const SpeechChunks chunks(config);
  const std::int64_t chunk = chunks.frames * chunks.frame_samples;
  std::string text = fmt::format(
      "stream: chunks of {:.0f} ms with {:.0f} ms of left context; algorithmic latency at most "
      "{:.0f} ms, from a frame to the end of its chunk's audio\n",
      milliseconds(config, chunk), milliseconds(config, chunks.past * chunks.frame_samples),
      milliseconds(config, chunks.latency_samples()));
  std::vector<double> took;
  double audio = 0, all = 0;
  for (const Transcript& t : transcripts) {
    took.insert(took.end(), t.chunk_seconds.begin(), t.chunk_seconds.end());
    if (!t.chunk_seconds.empty()) audio += t.seconds;
  }
  if (took.empty()) return text;
  for (const double seconds : took) all += seconds;
  const double most = *std::max_element(took.begin(), took.end());
  const double median = nearest_quantile(took, 0.5), tail = nearest_quantile(took, 0.9);
  return text + fmt::format(
                    "stream: {} chunks, median {:.2f} ms, 90 % within {:.2f} ms, at most {:.2f} "
                    "ms; real-time factor {:.5f}\n",
                    took.size(), 1e3 * median, 1e3 * tail, 1e3 * most, all / audio);
}

}  // namespace choir
