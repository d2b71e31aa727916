#include "choir/data/speech/corpus_labels.hpp"

#include <algorithm>

#include "choir/core/clock.hpp"
#include "choir/core/error.hpp"
#include "choir/core/text.hpp"
#include "choir/data/audio/audio_catalog.hpp"
#include "choir/data/speech/corpus_texts.hpp"
#include "choir/data/speech/label_file.hpp"

namespace choir {
namespace {

constexpr std::size_t kNamed = 5;            // bad utterances shown
constexpr std::int64_t kMostBadShare = 100;  // one in so many
constexpr std::size_t kShownBytes = 80;

std::vector<std::string> texts_of(const AudioCatalog& catalog) {
  std::vector<std::string> texts;
  texts.reserve(static_cast<std::size_t>(catalog.size()));
  const std::string path = catalog.folder() + "/manifest.jsonl";
  read_manifest_texts(path,
                      [&](std::int64_t, std::string&& text) { texts.push_back(std::move(text)); });
  if (std::ssize(texts) != catalog.size())
    throw DataError(fmt::format("'{}' has {} lines, its index {} utterances", path, texts.size(),
                                catalog.size()),
                    "pack the audio again with 'choir prepare audio'");
  return texts;
}

std::string name_bad(std::size_t line, const std::string& text, const std::string& unknown) {
  const bool cut = text.size() > kShownBytes;
  return fmt::format("line {}: {} in \"{}{}\"", line + 1, unknown, text.substr(0, kShownBytes),
                     cut ? "..." : "");
}

void judge(const LabelSummary& summary, OnBad on_bad) {
  if (summary.bad == 0) return;
  const bool few = summary.bad * kMostBadShare <= summary.utterances;
  if (on_bad == OnBad::skip && few) return;
  throw DataError(
      fmt::format("{} of {} utterances have characters outside the vocabulary{}:\n  {}",
                  summary.bad, summary.utterances,
                  on_bad == OnBad::skip ? ", more than the 1 % that may be skipped" : "",
                  join(summary.first_bad, "\n  ")),
      on_bad == OnBad::skip || !few
          ? "normalise the texts, or make the tokenizer of these texts too"
          : "--on-bad skip leaves them out; or make the tokenizer of these texts too");
}

}  // namespace

std::string units_path(const std::string& folder, const std::string& name) {
  return fmt::format("{}/tokenizer.{}.json", folder, name);
}

LabelSummary write_labels(const std::string& folder, const TextUnits& units,
                          const std::string& name, OnBad on_bad) {
  LabelSummary summary;
  summary.labels_path = LabelFile::path(folder, name);
  summary.units_path = units_path(folder, name);
  const AudioCatalog catalog = AudioCatalog::open(folder);
  const std::vector<std::string> texts = texts_of(catalog);
  std::vector<TextUnits::Encoded> encoded(texts.size());
#pragma omp parallel for schedule(static)
  for (std::size_t i = 0; i < texts.size(); ++i) encoded[i] = units.encode(texts[i]);

  std::vector<std::vector<std::int32_t>> ids(texts.size());
  std::vector<bool> bad(texts.size());
  summary.utterances = catalog.size();
  for (std::size_t i = 0; i < texts.size(); ++i) {
    if (texts[i].empty()) ++summary.without_text;
    bad[i] = !encoded[i].unknown.empty();
    if (bad[i]) {
      ++summary.bad;
      if (summary.first_bad.size() < kNamed)
        summary.first_bad.push_back(name_bad(i, texts[i], encoded[i].unknown));
      continue;
    }
    ids[i] = std::move(encoded[i].ids);
    summary.ids += std::ssize(ids[i]);
    summary.letters += catalog[static_cast<std::int64_t>(i)].text_letters;
  }
  judge(summary, on_bad);
  units.save(summary.units_path);
  LabelFile::write(folder, name, catalog.hash(), units.hash(), units.vocab_size(), ids, bad);
  return summary;
}

std::string LabelSummary::to_string() const {
  std::string text =
      fmt::format("utterances  {}, {} without text\nids         {}, {:.2f} letters each\n",
                  format_count(utterances), format_count(without_text), format_count(ids),
                  ids == 0 ? 0.0 : static_cast<double>(letters) / static_cast<double>(ids));
  if (bad > 0)
    text += fmt::format("left out    {} with characters outside the vocabulary:\n  {}\n",
                        format_count(bad), join(first_bad, "\n  "));
  return text + fmt::format("written     {}\n            {}", labels_path, units_path);
}

}  // namespace choir
