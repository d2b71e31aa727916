#include "src/data/corpora/corpus_preparation.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <fstream>
#include <optional>
#include <set>

#include "choir/core/error.hpp"
#include "src/comm/agreement.hpp"
#include "src/core/hints.hpp"
#include "src/core/json_value.hpp"
#include "src/core/quantities.hpp"
#include "src/core/text.hpp"
#include "src/data/audio/archive_reader.hpp"
#include "src/data/audio/audio_unit.hpp"
#include "src/data/audio/packed_audio.hpp"
#include "src/data/audio/prepare_audio.hpp"
#include "src/data/audio/recording_list.hpp"
#include "src/data/audio/transcript_form.hpp"
#include "src/data/speech/label_file.hpp"
#include "src/data/vocabulary/utf8.hpp"

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

namespace {

/// The manifest that a folder was packed from, for messages; else the folder.
std::string source_of(const std::string& folder) {
  const std::vector<std::string> manifests = packed_manifests(folder);
  return manifests.size() == 1 ? manifests.front() : folder;
}

[[noreturn]] void refuse_textless(const std::string& given, const std::string& file) {
  const std::string source = fs::is_directory(given) ? source_of(given) : given;
  std::string key, line;
  if (is_manifest(file)) {
    LineReader lines = open(file);
    while (key.empty() && lines.next(line))
      if (!trim(line).empty()) {
        auto json = read_ordered_json_line(line, file);
        if (json.is_object() && json.contains("text") && json["text"] == "") json.erase("text");
        if (json.is_object()) key = other_text_key(json);
      }
  }
  throw DataError(fmt::format("there is no text in '{}'", source),
                  key.empty() ? "recognisers are trained on recordings with their texts"
                              : fmt::format("its texts are in \"{}\", which NeMo calls \"text\": "
                                            "`choir prepare manifest {} --out OUT` renames it",
                                            key, source));
}

}  // namespace

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
    if (texts.size() == before) refuse_textless(given, path);
  }
  return texts;
}

namespace {

constexpr std::size_t kNamed = 5;  // bad utterances shown
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

std::string name_bad(const AudioCatalog& catalog, std::size_t line, const std::string& text,
                     const std::string& unknown) {
  const bool cut = text.size() > kShownBytes;
  const std::string name = catalog.name(static_cast<std::int64_t>(line));
  const bool named = !name.ends_with(fmt::format(" of '{}'", catalog.folder()));
  return fmt::format("line {}{}: {} in \"{}{}\"", line + 1, named ? ", " + name : "", unknown,
                     text.substr(0, kShownBytes), cut ? "..." : "");
}

/// The command that writes the manifest of a packed folder in another form, or "".
std::string command_for(const UnwritableTexts& unwritable, const std::string& folder) {
  const std::vector<std::string> manifests = packed_manifests(folder);
  return unwritable.command(manifests.size() == 1 ? manifests.front() : "MANIFEST");
}

constexpr const char* kSkipInDeck = "data.on_bad=skip";

struct BadTextRule {
  OnBad on_bad;
  double cap;
  const char* skip;  ///< the setting by which the user skips bad texts
  bool trained;      ///< the units are those of a trained model, which cannot learn others
};

void judge(const LabelSummary& summary, const UnwritableTexts& unwritable,
           const std::string& folder, const BadTextRule& rule) {
  if (summary.bad == 0) return;
  const bool few =
      static_cast<double>(summary.bad) <= rule.cap * static_cast<double>(summary.utterances);
  if (rule.on_bad == OnBad::skip && few) return;
  const std::string command = command_for(unwritable, folder);
  throw DataError(
      fmt::format(
          "{} of {} utterances of '{}' have characters outside the vocabulary{}: {}\n  {}",
          summary.bad, summary.utterances, source_of(folder),
          rule.on_bad == OnBad::skip
              ? fmt::format(", more than the {:g} % that {} leaves out", 100 * rule.cap, rule.skip)
              : "",
          unwritable.characters(), join(summary.first_bad, "\n  ")),
      fmt::format("{}{}{}",
                  command.empty()
                      ? "write the texts in the characters of the vocabulary"
                      : fmt::format("`{}` writes a manifest with texts that it can write; use that",
                                    command),
                  command.empty() || unwritable.remaining() == 0
                      ? ""
                      : fmt::format(", and correct the {} that remain", unwritable.remaining()),
                  !command.empty() && unwritable.remaining() == 0 ? ""
                  : rule.on_bad == OnBad::stop && few
                      ? fmt::format("; {} leaves out up to {:g} %", rule.skip, 100 * rule.cap)
                  : rule.trained
                      ? "; to learn these texts, train a new head: "
                        "'checkpoint.init_skip=[\"head.*\"]' leaves out that of the run it begins "
                        "with, and data.labels (char, bpe_256) makes units of these texts; `choir "
                        "transcribe RUN --manifest FILE` scores them as they are, and their words "
                        "count as errors"
                      : "; or train the tokenizer on these texts too"));
}

/// The ids of all texts of a folder.
struct Encoded {
  std::vector<std::vector<std::int32_t>> ids;
  std::vector<bool> bad;
};

Encoded encode(const AudioCatalog& catalog, const Vocabulary& vocabulary, const BadTextRule& rule,
               LabelSummary& summary) {
  const std::vector<std::string> texts = texts_of(catalog);
  std::vector<Vocabulary::Encoded> encoded(texts.size());
#pragma omp parallel for schedule(static)
  for (std::size_t i = 0; i < texts.size(); ++i) encoded[i] = vocabulary.try_encode(texts[i]);

  Encoded made{.ids = std::vector<std::vector<std::int32_t>>(texts.size()),
               .bad = std::vector<bool>(texts.size())};
  summary.utterances = catalog.size();
  UnwritableTexts unwritable(vocabulary);
  for (std::size_t i = 0; i < texts.size(); ++i) {
    if (texts[i].empty()) ++summary.without_text;
    made.bad[i] = !encoded[i].unknown.empty();
    if (made.bad[i]) {
      ++summary.bad;
      unwritable.add(texts[i]);
      if (summary.first_bad.size() < kNamed)
        summary.first_bad.push_back(name_bad(catalog, i, texts[i], encoded[i].unknown));
      continue;
    }
    made.ids[i] = std::move(encoded[i].ids);
    summary.ids += std::ssize(made.ids[i]);
    summary.letters += catalog[static_cast<std::int64_t>(i)].text_letters;
  }
  judge(summary, unwritable, catalog.folder(), rule);
  return made;
}

}  // namespace

std::string units_path(const std::string& folder, const std::string& name) {
  return fmt::format("{}/tokenizer.{}.json", folder, name);
}

LabelSummary write_labels(const std::string& folder, const Vocabulary& vocabulary,
                          const std::string& name, OnBad on_bad, double bad_cap, const char* skip) {
  LabelSummary summary;
  summary.labels_path = LabelFile::path(folder, name);
  summary.units_path = units_path(folder, name);
  const AudioCatalog catalog = AudioCatalog::open(folder);
  const Encoded made =
      encode(catalog, vocabulary,
             {.on_bad = on_bad, .cap = bad_cap, .skip = skip, .trained = false}, summary);
  vocabulary.save(summary.units_path);
  LabelFile::write(folder, name, catalog.hash(), vocabulary.hash(), vocabulary.size(), made.ids,
                   made.bad);
  return summary;
}

LabelFile labels_in_memory(const AudioCatalog& catalog, const Vocabulary& vocabulary, OnBad on_bad,
                           double bad_cap) {
  LabelSummary summary;
  const Encoded made =
      encode(catalog, vocabulary,
             {.on_bad = on_bad, .cap = bad_cap, .skip = kSkipInDeck, .trained = true}, summary);
  return LabelFile::made(vocabulary.hash(), vocabulary.size(), made.ids, made.bad);
}

std::string LabelSummary::to_string() const {
  std::string text =
      fmt::format("utterances  {}, {} without text\nids         {}, {:.2f} characters per token\n",
                  format_count(utterances), format_count(without_text), format_count(ids),
                  ids == 0 ? 0.0 : static_cast<double>(letters) / static_cast<double>(ids));
  if (bad > 0)
    text += fmt::format("no ids      {} with characters outside the vocabulary:\n  {}\n",
                        format_count(bad), join(first_bad, "\n  "));
  return text + fmt::format("written     {}\n            {}", labels_path, units_path);
}

namespace {

namespace fs = std::filesystem;

/// "char", "bpe_256" (also "bpe256"); std::nullopt for a name that specifies no units.
std::optional<VocabularyTraining> units_named(const std::string& labels) {
  if (labels == "char") return VocabularyTraining{};
  const std::size_t digit = labels.find_first_of("0123456789");
  VocabularyTraining units{.type = labels.substr(0, digit), .vocab_size = 0};
  if (units.type.ends_with('_')) units.type.pop_back();
  if (digit == std::string::npos || (units.type != "bpe" && units.type != "unigram")) return {};
  const char* const end = labels.data() + labels.size();
  const auto [stop, error] = std::from_chars(labels.data() + digit, end, units.vocab_size);
  if (error != std::errc() || stop != end || units.vocab_size < 1) return {};
  return units;
}

/// A hint for a name of labels that specifies no units: a file of units, or a misspelt name.
std::string advice_on_labels(const std::string& labels) {
  const fs::path file(labels);
  if (file.has_extension() || labels.find('/') != std::string::npos)
    return fmt::format(
        "data.labels is a name, and not a file: pack the audio (`choir prepare audio`), then "
        "`choir prepare tokens FOLDER --tokenizer {} --name NAME` and data.labels=NAME",
        labels);
  const std::size_t digit = labels.find_first_of("0123456789");
  std::string type = labels.substr(0, digit), near;
  while (type.ends_with('-') || type.ends_with('_')) type.pop_back();
  if (digit != std::string::npos && (type == "bpe" || type == "unigram"))
    near = fmt::format("did you mean {}_{}? ", type, labels.substr(digit));
  if (!nearest_name(fold_name(labels), {"char", "chars", "character", "characters"}).empty())
    near = "did you mean char? ";
  return near +
         "\"char\", \"bpe_256\" or \"unigram_128\" are made of the texts; or prepare the data "
         "(`choir prepare audio`, `tokenizer`, `tokens`)";
}

std::string packed_folder(const std::string& manifest, const FirstUse& options, Logger& log) {
  const fs::path path = fs::absolute(manifest).lexically_normal();
  std::uint64_t hash = fnv1a(fmt::format("{}:{}:", path.string(), options.sample_rate));
  if (!options.channel.empty()) hash = fnv1a(options.channel, hash);
  std::ifstream bytes(path, std::ios::binary);
  for (std::string part(1 << 16, '\0'); bytes.read(part.data(), 1 << 16), bytes.gcount() > 0;)
    hash = fnv1a(std::string_view(part).substr(0, static_cast<std::size_t>(bytes.gcount())), hash);
  const std::string folder =
      fmt::format("{}/{}-speech-{:016x}", options.cache_dir, path.stem().string(), hash);
  if (!fs::exists(folder + "/index.bin")) return folder;
  const RecordingFiles now = recording_files(read_audio_manifests({manifest}, {}).entries);
  const std::string changed = changed_recording(folder, now);
  if (changed.empty()) return folder;
  log.info("data: recordings of '{}' have changed since they were packed; the newest is '{}'",
           manifest, changed);
  return fmt::format("{}-{:016x}", folder, now.state);
}

/// The units that a small corpus allows, from the message of SentencePiece, which ends with the
/// largest vocabulary: "... set it to a value <= 110."
std::string smaller_units(const std::string& type, std::string_view message) {
  constexpr std::string_view kBefore = "a value <= ";
  const std::size_t at = message.find(kBefore);
  int most = 0;
  if (at != std::string_view::npos)
    std::from_chars(message.data() + at + kBefore.size(), message.data() + message.size(), most);
  return fmt::format(
      "data.labels=char takes the characters as units, which need more frames: add "
      "model.subsampling=4 where the deck has 8{}",
      most > 0 ? fmt::format("; data.labels={}_{} is the largest vocabulary of "
                             "pieces that these texts allow",
                             type, most)
               : "; with fewer pieces, for example data.labels=" + type + "_64");
}

/// The paths that a run names, in order: folders packed by hand, and those made from manifests.
struct FirstUsePaths {
  std::vector<std::string> folders;
  std::vector<bool> made;
  std::size_t training = 0;  ///< the first paths are those of the training data
};

/// Units trained on the training texts. They are kept beside the packed manifests, so that the same
/// training data always have the same units, whatever else their parts are used for.
Vocabulary trained_units(const FirstUsePaths& paths, const VocabularyTraining& units,
                         const FirstUse& options) {
  const std::vector<std::string> training(
      paths.folders.begin(), paths.folders.begin() + static_cast<long>(paths.training));
  const std::string path = fmt::format("{}/tokenizer.{}-{:016x}.json", options.cache_dir,
                                       options.labels, fnv1a(join(training, "\n")));
  if (fs::exists(path)) return Vocabulary::load(path);
  try {
    Vocabulary trained = train_vocabulary(units, read_corpus_texts(training));
    trained.save(path);
    return trained;
  } catch (const DeckError& error) {
    throw DeckError(fmt::format("data.labels = \"{}\": {}", options.labels, error.what()),
                    smaller_units(units.type, error.what()));
  }
}

/// The units of the checkpoint, else those of the first training folder that was packed by hand and
/// has them, else units trained on the training texts.
Vocabulary units_for(const FirstUsePaths& paths, const FirstUse& options) {
  if (!options.units.empty()) return Vocabulary::from_json(options.units, "the checkpoint");
  for (std::size_t i = 0; i < paths.training; ++i)
    if (const std::string path = units_path(paths.folders[i], options.labels);
        !paths.made[i] && fs::exists(path))
      return Vocabulary::load(path);
  const auto units = units_named(options.labels);
  if (!units || paths.training == 0)
    throw DeckError(fmt::format("data.labels = \"{}\": no folder to train on has tokenizer.{}.json",
                                options.labels, options.labels),
                    advice_on_labels(options.labels));
  return trained_units(paths, *units, options);
}

PrepareAudioOptions packing_of(const FirstUse& options) {
  return {.sample_rate = options.sample_rate,
          .channel = channel_choice_of(options.channel),
          .stop_on_bad = options.on_bad == OnBad::stop,
          .bad_cap = options.bad_cap,
          .cap_name = "data.bad_cap",
          .keeps_shards = false,
          .skip_hint = "data.on_bad=skip leaves such utterances out, up to data.bad_cap of them",
          .channel_hint = "choose one for the whole manifest: data.channel=average (or 0, 1 ...)"};
}

/// Packs a manifest into a folder. Data that are refused leave nothing behind.
void pack(Communicator& world, Logger& log, const std::string& manifest, const std::string& folder,
          const FirstUse& options) {
  const bool began_before = fs::exists(folder);
  try {
    const PrepareAudioSummary summary =
        prepare_audio(world, log, {manifest}, folder, packing_of(options));
    log.info("data: {}", summary.to_string());
  } catch (const DataError&) {
    std::error_code ignored;
    if (world.rank() == 0 && !began_before) fs::remove_all(folder, ignored);
    throw;
  }
}

/// Local, called on rank 0. Returns the units as JSON.
std::string write_missing_labels(const FirstUsePaths& paths, const FirstUse& options, Logger& log) {
  const Vocabulary units = units_for(paths, options);
  const std::string name = own_labels_name(options.labels, units.hash());
  for (std::size_t i = 0; i < paths.folders.size() && options.units.empty(); ++i) {
    const std::string& folder = paths.folders[i];
    if (!paths.made[i] ||
        LabelFile::find(folder, name, AudioCatalog::open(folder).hash(), units.hash()))
      continue;
    // Validation data keep texts without labels: error rates compare texts.
    const bool training = i < paths.training;
    const OnBad on_bad = training ? options.on_bad : OnBad::skip;
    const double cap = training ? options.bad_cap : 1;
    log.info("data: {}", write_labels(folder, units, name, on_bad, cap, kSkipInDeck).to_string());
  }
  return units.to_json();
}

/// Refuses paths that do not exist, with the name that may be meant.
void require_there(const std::vector<std::string*>& paths) {
  for (const std::string* path : paths)
    if (!fs::exists(*path))
      throw DataError(fmt::format("there is no file or folder '{}', which data.train, data.val or "
                                  "data.validation of the deck names (to train without its sets: "
                                  "'data.validation={{}}')",
                                  *path),
                      advice_on_path(*path,
                                     "name manifests (.json, .jsonl) or folders of `choir prepare "
                                     "audio`; to plan or to measure without data, add "
                                     "data.format=synthetic"));
}

}  // namespace

std::string pack_on_first_use(Communicator& world, Logger& log,
                              const std::vector<std::string*>& paths, std::size_t units_from,
                              const FirstUse& options) {
  // Rank 0 decides the folder of each file; the line is empty for a path that is a folder already.
  std::string places;
  together(world, [&] {
    if (world.rank() != 0) return;
    require_there(paths);
    for (const std::string* path : paths)
      places += (fs::is_regular_file(*path) ? packed_folder(*path, options, log) : "") + "\n";
  });
  broadcast_text(world, places);
  const std::vector<std::string> place = split(places, '\n');
  FirstUsePaths all{.made = std::vector<bool>(paths.size()),
                    .training = std::min(units_from, paths.size())};
  bool any = !options.units.empty();
  for (std::size_t i = 0; i < paths.size(); ++i) {
    const std::string manifest = *paths[i];
    const bool made = !place[i].empty();
    all.made[i] = made;
    any = any || made;
    if (made) *paths[i] = place[i];
    all.folders.push_back(*paths[i]);
    int there = 0;
    if (made && world.rank() == 0) there = fs::exists(place[i] + "/index.bin");
    world.broadcast(&there, sizeof there, 0);
    if (!made) continue;
    if (there != 0) {
      // Another run may have left out what this one shall stop at.
      together(world, [&] {
        if (world.rank() != 0) return;
        const std::string left_out = judge_left_out(place[i], packing_of(options));
        if (!left_out.empty()) log.info("data: '{}': {}", manifest, left_out);
      });
      continue;
    }
    log.info("data: packing '{}' for its first use, into {}", manifest, place[i]);
    pack(world, log, manifest, place[i], options);
  }
  std::string units;
  if (!any || options.labels.empty()) return units;
  together(world, [&] {
    if (world.rank() == 0) units = write_missing_labels(all, options, log);
  });
  broadcast_text(world, units);
  return units;
}

}  // namespace choir
