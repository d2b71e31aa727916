#include "choir/data/corpora/packed_on_first_use.hpp"

#include <fmt/core.h>

#include <charconv>
#include <filesystem>
#include <optional>

#include "choir/comm/agreement.hpp"
#include "choir/core/text.hpp"
#include "choir/data/audio/prepare_audio.hpp"
#include "choir/data/corpora/corpus_labels.hpp"

namespace choir {
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
  return train_vocabulary(
      *units, read_corpus_texts({folders.begin(), folders.begin() + static_cast<long>(training)}));
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
