#include "src/data/corpora/corpus_preparation.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <fstream>
#include <optional>

#include "choir/core/error.hpp"
#include "src/comm/agreement.hpp"
#include "src/core/json_value.hpp"
#include "src/core/quantities.hpp"
#include "src/core/text.hpp"
#include "src/data/audio/archive_reader.hpp"
#include "src/data/audio/packed_audio.hpp"
#include "src/data/audio/prepare_audio.hpp"
#include "src/data/speech/label_file.hpp"

namespace choir {
namespace {

namespace fs = std::filesystem;

LineReader open(const std::string& path) {
  if (!std::ifstream(path, std::ios::binary) || fs::is_directory(path))
    throw DataError(fmt::format("cannot open '{}'", path),
                    "texts are read from text files, NeMo manifests and folders that 'choir "
                    "prepare audio' wrote");
  return LineReader(path);
}

bool is_manifest(const std::string& path) {
  LineReader lines = open(path);
  for (std::string line; lines.next(line);)
    if (!trim(line).empty()) return trim(line).front() == '{';
  return false;
}

std::string text_of(const std::string& line, const std::string& path, std::int64_t number) {
  const auto parsed = read_json_line(line, fmt::format("{}:{}", path, number + 1));
  if (!parsed.is_object())
    throw DataError(fmt::format("{}:{} is not a JSON object", path, number + 1),
                    "every line of a manifest must be one, such as {\"audio_filepath\": ..., "
                    "\"duration\": 1.5, \"text\": \"...\"}");
  const auto text = parsed.find("text");
  if (text == parsed.end() || text->is_null()) return "";
  if (!text->is_string())
    throw DataError(fmt::format("{}:{}: \"text\" is not a string", path, number + 1));
  return text->get<std::string>();
}

void keep(std::vector<std::string>& texts, std::string_view text) {
  text = trim(text);
  if (!text.empty()) texts.emplace_back(text);
}

}  // namespace

void read_manifest_texts(const std::string& path,
                         const std::function<void(std::int64_t, std::string&&)>& use) {
  LineReader lines = open(path);
  std::string line;
  for (std::int64_t number = 0; lines.next(line); ++number)
    use(number, text_of(line, path, number));
}

std::vector<std::string> read_corpus_texts(const std::vector<std::string>& paths) {
  std::vector<std::string> texts;
  for (const std::string& given : paths) {
    const std::string path = fs::is_directory(given) ? given + "/manifest.jsonl" : given;
    const std::size_t before = texts.size();
    if (is_manifest(path)) {
      read_manifest_texts(path, [&](std::int64_t, std::string&& text) { keep(texts, text); });
    } else {
      LineReader lines = open(path);
      for (std::string line; lines.next(line);) keep(texts, line);
    }
    if (texts.size() == before) throw DataError(fmt::format("there is no text in '{}'", path));
  }
  return texts;
}

namespace {

constexpr std::size_t kNamed = 5;            // bad utterances shown
constexpr std::int64_t kMostBadShare = 100;  // one in this many
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
          ? "normalise the texts, or train the tokenizer on these texts too"
          : "--on-bad skip (in a deck: data.on_bad=skip) excludes them; or train the tokenizer on "
            "these texts too");
}

}  // namespace

std::string units_path(const std::string& folder, const std::string& name) {
  return fmt::format("{}/tokenizer.{}.json", folder, name);
}

LabelSummary write_labels(const std::string& folder, const Vocabulary& vocabulary,
                          const std::string& name, OnBad on_bad) {
  LabelSummary summary;
  summary.labels_path = LabelFile::path(folder, name);
  summary.units_path = units_path(folder, name);
  const AudioCatalog catalog = AudioCatalog::open(folder);
  const std::vector<std::string> texts = texts_of(catalog);
  std::vector<Vocabulary::Encoded> encoded(texts.size());
#pragma omp parallel for schedule(static)
  for (std::size_t i = 0; i < texts.size(); ++i) encoded[i] = vocabulary.try_encode(texts[i]);

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
  vocabulary.save(summary.units_path);
  LabelFile::write(folder, name, catalog.hash(), vocabulary.hash(), vocabulary.size(), ids, bad);
  return summary;
}

std::string LabelSummary::to_string() const {
  std::string text =
      fmt::format("utterances  {}, {} without text\nids         {}, {:.2f} characters per token\n",
                  format_count(utterances), format_count(without_text), format_count(ids),
                  ids == 0 ? 0.0 : static_cast<double>(letters) / static_cast<double>(ids));
  if (bad > 0)
    text += fmt::format("left out    {} with characters outside the vocabulary:\n  {}\n",
                        format_count(bad), join(first_bad, "\n  "));
  return text + fmt::format("written     {}\n            {}", labels_path, units_path);
}

namespace {

namespace fs = std::filesystem;

/// "char", "bpe_256"; std::nullopt for a name that specifies no units.
std::optional<VocabularyTraining> units_named(const std::string& labels) {
  if (labels == "char") return VocabularyTraining{};
  const std::size_t line = labels.find('_');
  VocabularyTraining units{.type = labels.substr(0, line), .vocab_size = 0};
  if (line == std::string::npos || (units.type != "bpe" && units.type != "unigram")) return {};
  const char* const end = labels.data() + labels.size();
  const auto [stop, error] = std::from_chars(labels.data() + line + 1, end, units.vocab_size);
  if (error != std::errc() || stop != end || units.vocab_size < 1) return {};
  return units;
}

std::string packed_folder(const std::string& manifest, const FirstUse& options) {
  const fs::path path = fs::absolute(manifest).lexically_normal();
  std::error_code beyond;  // ignored, as in cache_folder() of texts
  const auto time = fs::last_write_time(path, beyond).time_since_epoch().count();
  const std::uint64_t hash = fnv1a(
      fmt::format("{}:{}:{}:{}", path.string(), fs::file_size(path), time, options.sample_rate));
  return fmt::format("{}/{}-speech-{:016x}", options.cache_dir, path.stem().string(), hash);
}

/// The units that a small corpus allows, from the message of SentencePiece, which ends with the
/// largest vocabulary: "... set it to a value <= 110."
std::string smaller_units(const std::string& type, std::string_view message) {
  constexpr std::string_view kBefore = "a value <= ";
  const std::size_t at = message.find(kBefore);
  int most = 0;
  if (at != std::string_view::npos)
    std::from_chars(message.data() + at + kBefore.size(), message.data() + message.size(), most);
  return fmt::format("data.labels=char takes the characters as units{}",
                     most > 0 ? fmt::format("; data.labels={}_{} is the largest vocabulary of "
                                            "pieces that these texts allow",
                                            type, most)
                              : "; with fewer pieces, for example data.labels=" + type + "_64");
}

/// The units of the first folder that has them; else units trained on the training texts.
Vocabulary units_for(const std::vector<std::string>& folders, std::size_t training,
                     const FirstUse& options) {
  for (std::size_t i = 0; i < training; ++i)
    if (const std::string path = units_path(folders[i], options.labels); fs::exists(path))
      return Vocabulary::load(path);
  const auto units = units_named(options.labels);
  if (!units || training == 0)
    throw DeckError(fmt::format("data.labels = \"{}\": no folder to train on has tokenizer.{}.json",
                                options.labels, options.labels),
                    "\"char\", \"bpe_256\" or \"unigram_128\" are made of the texts; or prepare "
                    "the data (`choir "
                    "prepare audio`, `tokenizer`, `tokens`)");
  try {
    return train_vocabulary(
        *units,
        read_corpus_texts({folders.begin(), folders.begin() + static_cast<long>(training)}));
  } catch (const DeckError& error) {
    throw DeckError(fmt::format("data.labels = \"{}\": {}", options.labels, error.what()),
                    smaller_units(units->type, error.what()));
  }
}

/// Local, called on rank 0.
void write_missing_labels(const std::vector<std::string>& folders, const std::vector<bool>& made,
                          std::size_t training, const FirstUse& options, Logger& log) {
  std::optional<Vocabulary> units;
  for (std::size_t i = 0; i < folders.size(); ++i) {
    if (!made[i] || fs::exists(fmt::format("{}/labels.{}.bin", folders[i], options.labels)))
      continue;
    if (!units) units = units_for(folders, training, options);
    log.info("data: {}",
             write_labels(folders[i], *units, options.labels, options.on_bad).to_string());
  }
}

}  // namespace

void pack_on_first_use(Communicator& world, Logger& log, const std::vector<std::string*>& paths,
                       std::size_t units_from, const FirstUse& options) {
  // Rank 0 decides the folder of each file; the line is empty for a path that is a folder already.
  std::string places;
  together(world, [&] {
    if (world.rank() != 0) return;
    for (const std::string* path : paths)
      places += (fs::is_regular_file(*path) ? packed_folder(*path, options) : "") + "\n";
  });
  broadcast_text(world, places);
  const std::vector<std::string> place = split(places, '\n');
  std::vector<bool> made(paths.size());
  std::vector<std::string> folders;
  bool any = false;
  for (std::size_t i = 0; i < paths.size(); ++i) {
    const std::string manifest = *paths[i];
    made[i] = !place[i].empty();
    any = any || made[i];
    if (made[i]) *paths[i] = place[i];
    folders.push_back(*paths[i]);
    int there = 0;
    if (made[i] && world.rank() == 0) there = fs::exists(place[i] + "/index.bin");
    world.broadcast(&there, sizeof there, 0);
    if (!made[i] || there != 0) continue;
    log.info("data: packing '{}' for its first use, into {}", manifest, place[i]);
    const PrepareAudioSummary summary = prepare_audio(
        world, log, {manifest}, place[i],
        {.sample_rate = options.sample_rate, .stop_on_bad = options.on_bad == OnBad::stop});
    log.info("data: {}", summary.to_string());
  }
  if (!any) return;
  together(world, [&] {
    if (world.rank() == 0 && !options.labels.empty())
      write_missing_labels(folders, made, std::min(units_from, folders.size()), options, log);
  });
}

}  // namespace choir
