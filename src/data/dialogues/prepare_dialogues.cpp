#include "src/data/dialogues/prepare_dialogues.hpp"

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <filesystem>
#include <optional>
#include <set>

#include "choir/core/error.hpp"
#include "src/comm/agreement.hpp"
#include "src/core/file.hpp"
#include "src/core/json_value.hpp"
#include "src/core/quantities.hpp"
#include "src/core/text.hpp"
#include "src/data/audio/packed_audio.hpp"
#include "src/data/audio/prepare_audio.hpp"
#include "src/data/dialogues/dialogue_channels.hpp"
#include "src/data/speech/label_file.hpp"
#include "src/data/vocabulary/vocabulary.hpp"

namespace choir {
namespace {

namespace fs = std::filesystem;

constexpr std::int64_t kMostFramesApart = 2;

struct BadDialogue {
  std::string id, reason, detail;
};

/// The dialogues of one folder, on rank 0.
struct DialogueWork {
  std::vector<DialogueEntry> entries;
  std::vector<std::vector<std::vector<std::int32_t>>> ids;  // for every turn of every entry
  std::int64_t total = 0;                                   // includes bad dialogues
  std::string request;                                      // hash of the input
  DialogueForm form;
  std::optional<Vocabulary> vocabulary;
  std::vector<BadDialogue> bad;
};

/// The request (input hash) of a finished folder; "" for none.
std::string request_of_folder(const std::string& folder) {
  if (!fs::exists(DialogueForm::path(folder))) return {};
  const std::string path = DialogueForm::path(folder);
  const auto json = read_json(read_whole_file(path, kMostSettingsMiB), path);
  const auto request = json.is_object() ? json.find("request") : json.end();
  return request != json.end() && request->is_string() ? request->get<std::string>() : "";
}

void make_dialogue_folder(const std::string& folder, const std::string& request) {
  std::error_code failure;
  fs::create_directories(folder, failure);
  if (failure) throw StorageError(fmt::format("cannot create '{}': {}", folder, failure.message()));
  const std::set<std::string> ours{"user", "agent", "user.jsonl", "agent.jsonl", "dialogues.json"};
  for (const auto& entry : fs::directory_iterator(folder))
    if (const std::string name = entry.path().filename().string(); !ours.contains(name))
      throw DataError(
          fmt::format("folder '{}' contains '{}', which is not part of packed dialogues", folder,
                      name),
          "choose an empty or a new folder");
  if (const std::string made = request_of_folder(folder); !made.empty() && made != request)
    throw DataError(fmt::format("'{}' contains dialogues of other manifests or options", folder),
                    "choose another --out, or remove it");
  // Remove first the file whose presence marks a complete folder.
  fs::remove(DialogueForm::path(folder), failure);
}

/// Throws if there are more bad dialogues than allowed.
void judge_bad(const DialogueWork& work, const PrepareDialoguesOptions& options) {
  if (work.bad.empty()) return;
  const auto count = std::ssize(work.bad);
  const BadDialogue& first = work.bad.front();
  const std::string example = fmt::format("{}: {}: {}", first.id, first.reason, first.detail);
  if (options.stop_on_bad)
    throw DataError(
        fmt::format("{}{}", example,
                    count > 1 ? fmt::format(" (and {} more bad dialogues)", count - 1) : ""),
        "--on-bad skip excludes such dialogues");
  if (static_cast<double>(count) > options.bad_cap * static_cast<double>(work.total))
    throw DataError(fmt::format("{} of {} dialogues are bad, more than the {:g} % that --bad-cap "
                                "allows; one of them: {}",
                                count, work.total, 100 * options.bad_cap, example),
                    "repair the manifests or their audio, or raise --bad-cap");
  if (count == work.total)
    throw DataError(fmt::format("all dialogues are bad; one of them: {}", example));
}

Vocabulary units_of(const std::string& units, const std::vector<DialogueEntry>& entries) {
  if (units.find('.') != std::string::npos || units.find('/') != std::string::npos)
    return Vocabulary::load(units);
  const std::size_t line = units.find('_');
  VocabularyTraining training{.type = units.substr(0, line), .vocab_size = 0};
  if (line != std::string::npos) {
    const char* const end = units.data() + units.size();
    const auto [stop, error] = std::from_chars(units.data() + line + 1, end, training.vocab_size);
    if (error != std::errc() || stop != end) training.type.clear();
  }
  if (training.type != "char" && training.type != "bpe" && training.type != "unigram")
    throw DeckError(fmt::format("--units {}", units),
                    "char, bpe_SIZE, unigram_SIZE, or the file of a tokenizer");
  std::vector<std::string> texts;
  for (const DialogueEntry& entry : entries)
    for (const DialogueTurn& turn : entry.turns)
      if (turn.agent && !turn.text.empty()) texts.push_back(turn.text);
  return train_vocabulary(training, texts);
}

std::string units_name(const std::string& units) {
  std::string name = fs::path(units).filename().string();
  if (name.ends_with(".json")) name.resize(name.size() - 5);
  if (name.starts_with("tokenizer.")) name.erase(0, 10);
  std::replace(name.begin(), name.end(), '.', '_');
  return name;
}

DialogueForm form_of(const Vocabulary& vocabulary, const PrepareDialoguesOptions& options) {
  DialogueForm form;
  form.units = units_name(options.units);
  form.vocab_hash = vocabulary.hash();
  form.vocab_size = vocabulary.size();
  const auto token = [&](std::int32_t given) {
    return given >= 0 ? given : static_cast<std::int32_t>(form.vocab_size++);
  };
  form.controls.pad = token(options.pad);
  form.controls.bos = token(options.bos);
  form.controls.eos = token(options.eos);
  form.controls.check(form.vocab_size);
  return form;
}

void encode_turns(DialogueWork& work) {
  std::vector<DialogueEntry> kept;
  for (DialogueEntry& entry : work.entries) {
    std::vector<std::vector<std::int32_t>> ids;
    std::string unknown;
    for (const DialogueTurn& turn : entry.turns) {
      Vocabulary::Encoded encoded;
      if (turn.agent) encoded = work.vocabulary->try_encode(turn.text);
      if (unknown.empty() && !encoded.unknown.empty())
        unknown = fmt::format("{} in \"{}\"", encoded.unknown, turn.text);
      ids.push_back(std::move(encoded.ids));
    }
    if (!unknown.empty()) {
      work.bad.push_back({entry.id, "characters outside the vocabulary", unknown});
      continue;
    }
    work.ids.push_back(std::move(ids));
    kept.push_back(std::move(entry));
  }
  work.entries = std::move(kept);
}

DialogueWork plan_work(const std::vector<std::string>& manifests,
                       const PrepareDialoguesOptions& options) {
  DialogueWork work;
  DialogueManifest manifest = read_dialogues(manifests, options.roles);
  work.total = std::ssize(manifest.entries) + std::ssize(manifest.left_out);
  work.entries = std::move(manifest.entries);
  std::uint64_t hash = fnv1a(std::to_string(options.sample_rate));
  for (const DialogueEntry& entry : work.entries)
    hash = fnv1a(entry.agent, fnv1a(entry.user, hash));
  work.request = fmt::format("{:016x}", hash);
  for (const OmittedEntry& line : manifest.left_out)
    work.bad.push_back({line.place, line.reason, line.detail});
  judge_bad(work, options);
  work.vocabulary = units_of(options.units, work.entries);
  work.form = form_of(*work.vocabulary, options);
  encode_turns(work);
  judge_bad(work, options);
  return work;
}

/// Writes the manifest of one side and removes audio packed from another one.
void write_side(const std::string& folder, const std::string& lines) {
  const std::string manifest = folder + ".jsonl";
  if (fs::exists(manifest) && read_whole_file(manifest, kMostBinaryMiB) != lines)
    fs::remove_all(folder);
  write_whole_file(manifest, lines);
}

void write_sides(const std::string& folder, const DialogueWork& work) {
  std::string user, agent;
  for (const DialogueEntry& entry : work.entries) {
    user += entry.user + "\n";
    agent += entry.agent + "\n";
  }
  write_side(DialogueForm::user(folder), user);
  write_side(DialogueForm::agent(folder), agent);
}

std::map<std::string, std::int64_t> packed_ids(const AudioCatalog& catalog) {
  std::map<std::string, std::int64_t> numbers;
  for (std::int64_t i = 0; i < catalog.size(); ++i) {
    const auto line =
        read_json_line(catalog.line(i), fmt::format("'{}', utterance {}", catalog.folder(), i));
    numbers[line.is_object() ? line.value("id", "") : ""] = i;
  }
  return numbers;
}

std::string seconds_of_frames(std::int64_t frames) {
  return fmt::format("{} frames ({:.2f} s)", frames, static_cast<double>(frames) * 0.08);
}

/// Removes dialogues that lack a side or whose sides differ in length. Returns true if none was
/// removed.
bool compare_sides(const std::string& folder, DialogueWork& work) {
  const AudioCatalog user = AudioCatalog::open(DialogueForm::user(folder));
  const AudioCatalog agent = AudioCatalog::open(DialogueForm::agent(folder));
  const auto users = packed_ids(user), agents = packed_ids(agent);
  const FrameClock clock{.sample_rate = user.sample_rate()};
  std::vector<DialogueEntry> kept;
  std::vector<std::vector<std::vector<std::int32_t>>> ids;
  for (std::size_t i = 0; i < work.entries.size(); ++i) {
    DialogueEntry& entry = work.entries[i];
    const auto u = users.find(entry.id), a = agents.find(entry.id);
    if (u == users.end() || a == agents.end()) {
      work.bad.push_back({entry.id, "bad audio",
                          fmt::format("the audio of the {} is unusable; report.json has the reason",
                                      u == users.end() ? "user" : "agent")});
      continue;
    }
    const std::int64_t heard = clock.frames(user[u->second].samples);
    const std::int64_t said = clock.frames(agent[a->second].samples);
    if (std::abs(heard - said) > kMostFramesApart || std::min(heard, said) < 2) {
      work.bad.push_back({entry.id, "sides of different lengths",
                          fmt::format("the recording of the user has {}, but that of the agent {}",
                                      seconds_of_frames(heard), seconds_of_frames(said))});
      continue;
    }
    kept.push_back(std::move(entry));
    ids.push_back(std::move(work.ids[i]));
  }
  const bool all = kept.size() == work.entries.size();
  for (std::int64_t i = 0; all && i < std::ssize(kept); ++i) {
    const std::string& id = kept[static_cast<std::size_t>(i)].id;
    CHOIR_CHECK(users.at(id) == i && agents.at(id) == i, "'{}' is packed out of order", id);
  }
  work.entries = std::move(kept);
  work.ids = std::move(ids);
  return all;
}

/// The text channel of one dialogue; adds its counts to the summary.
std::vector<std::int32_t> label_of(const DialogueWork& work, std::size_t entry, std::int64_t frames,
                                   PrepareDialoguesSummary& summary, std::int64_t& worst) {
  const DialogueEntry& dialogue = work.entries[entry];
  const FrameClock clock;  // converts times to frames, independent of the rate
  std::vector<FrameTurn> turns;
  for (std::size_t t = 0; t < dialogue.turns.size(); ++t) {
    const DialogueTurn& turn = dialogue.turns[t];
    if (!turn.agent) continue;
    turns.push_back({.begin = clock.frame_at(turn.start),
                     .end = clock.frame_at(turn.start + turn.duration),
                     .ids = work.ids[entry][t]});
    summary.tokens += std::ssize(turns.back().ids);
  }
  TextChannel channel = text_channel(turns, frames, work.form.controls);
  ++summary.dialogues;
  summary.turns += std::ssize(turns);
  summary.frames += frames;
  summary.cut += channel.cut;
  summary.cut_turns += channel.cut > 0;
  if (channel.worst_cut > worst) {
    worst = channel.worst_cut;
    summary.worst = fmt::format("turn {} of '{}', which has {} frames for {} tokens and BOS",
                                channel.worst + 1, dialogue.id,
                                turns[static_cast<std::size_t>(channel.worst)].end -
                                    turns[static_cast<std::size_t>(channel.worst)].begin,
                                turns[static_cast<std::size_t>(channel.worst)].ids.size());
  }
  return std::move(channel.tokens);
}

void write_text_channels(const std::string& folder, const DialogueWork& work,
                         PrepareDialoguesSummary& summary) {
  const std::string user_folder = DialogueForm::user(folder);
  const AudioCatalog user = AudioCatalog::open(user_folder);
  const AudioCatalog agent = AudioCatalog::open(DialogueForm::agent(folder));
  const FrameClock clock{.sample_rate = user.sample_rate()};
  std::vector<std::vector<std::int32_t>> labels(work.entries.size());
  std::int64_t worst = 0;
  for (std::size_t i = 0; i < labels.size(); ++i) {
    const auto at = static_cast<std::int64_t>(i);
    const std::int64_t frames =
        std::min(clock.frames(user[at].samples), clock.frames(agent[at].samples));
    labels[i] = label_of(work, i, frames, summary, worst);
  }
  const std::string& name = work.form.units;
  work.vocabulary->save(user_folder + "/tokenizer." + name + ".json");
  LabelFile::write(user_folder, name, user.hash(), work.form.hash(), work.form.vocab_size, labels,
                   std::vector<bool>(labels.size()));
}

void write_form(const std::string& folder, const DialogueWork& work,
                const PrepareDialoguesSummary& summary) {
  nlohmann::ordered_json json = work.form.json();
  json["format"] = "choir-dialogues";
  json["version"] = 1;
  json["request"] = work.request;
  json["dialogues"] = summary.dialogues;
  json["turns"] = summary.turns;
  json["frames"] = summary.frames;
  json["tokens"] = summary.tokens;
  json["tokens_cut"] = summary.cut;
  json["worst"] = summary.worst;
  json["left_out"] = summary.left_out;
  write_whole_file(DialogueForm::path(folder), dumped(json, 1) + "\n");
}

/// Packs both sides of the remaining dialogues. Returns true if all of them have sides of equal
/// length.
bool pack_sides(Communicator& world, Logger& log, const std::string& folder,
                const PrepareDialoguesOptions& options, DialogueWork& work) {
  together(world, [&] {
    if (world.rank() == 0) write_sides(folder, work);
  });
  PrepareAudioOptions audio;
  audio.sample_rate = options.sample_rate;
  audio.shard_minutes = options.shard_minutes;
  audio.stop_on_bad = options.stop_on_bad;
  audio.bad_cap = options.bad_cap;
  prepare_audio(world, log, {folder + "/user.jsonl"}, DialogueForm::user(folder), audio);
  prepare_audio(world, log, {folder + "/agent.jsonl"}, DialogueForm::agent(folder), audio);
  std::int64_t all = 0;
  together(world, [&] {
    if (world.rank() != 0) return;
    all = compare_sides(folder, work) ? 1 : 0;
    judge_bad(work, options);
  });
  world.broadcast(&all, sizeof all, 0);
  return all != 0;
}

}  // namespace

namespace {

PrepareDialoguesSummary pack_dialogues(Communicator& world, Logger& log,
                                       const std::vector<std::string>& manifests,
                                       const std::string& folder,
                                       const PrepareDialoguesOptions& options) {
  DialogueWork work;
  together(world, [&] {
    if (world.rank() != 0) return;
    work = plan_work(manifests, options);
    make_dialogue_folder(folder, work.request);
  });
  while (!pack_sides(world, log, folder, options, work)) {
  }
  PrepareDialoguesSummary summary;
  together(world, [&] {
    if (world.rank() != 0) return;
    summary.folder = folder;
    summary.units = work.form.units;
    summary.vocab_size = work.form.vocab_size;
    write_text_channels(folder, work, summary);
    for (const BadDialogue& bad : work.bad) ++summary.left_out[bad.reason];
    if (!work.bad.empty())
      summary.example = fmt::format("{}: {}", work.bad.front().id, work.bad.front().detail);
    write_form(folder, work, summary);
  });
  return summary;
}

/// Removes a folder that a refused run began, unless audio is packed there.
void abandon_dialogues(const std::string& folder) {
  std::error_code ignored;
  if (fs::exists(DialogueForm::user(folder), ignored) ||
      fs::exists(DialogueForm::agent(folder), ignored))
    return;
  for (const char* side : {"/user.jsonl", "/agent.jsonl"}) fs::remove(folder + side, ignored);
  fs::remove(folder, ignored);  // which fails if it is not empty
}

}  // namespace

PrepareDialoguesSummary prepare_dialogues(Communicator& world, Logger& log,
                                          const std::vector<std::string>& manifests,
                                          const std::string& folder,
                                          const PrepareDialoguesOptions& options) {
  std::error_code ignored;
  const bool may_remove = world.rank() == 0 && !fs::exists(folder, ignored);
  try {
    return pack_dialogues(world, log, manifests, folder, options);
  } catch (const DataError&) {
    if (may_remove) abandon_dialogues(folder);
    throw;
  }
}

std::string PrepareDialoguesSummary::to_string() const {
  std::string text = fmt::format(
      "dialogues     {}, {:.2f} hours, with {} of the agent\ntext          {} of units '{}', "
      "vocabulary of {}\n",
      format_count(dialogues), static_cast<double>(frames) * 0.08 / 3600, counted(turns, "turn"),
      counted(tokens, "token"), units, format_count(vocab_size));
  if (cut > 0)
    text += fmt::format(
        "cut           {} of text ({:.2f} %) do not fit their turns, in {}; worst: "
        "{}\n",
        counted(cut, "token"), 100 * static_cast<double>(cut) / static_cast<double>(tokens),
        counted(cut_turns, "dialogue"), worst);
  for (const auto& [reason, count] : left_out)
    text += fmt::format("left out      {}: {} (one: {})\n", counted(count, "dialogue"), reason,
                        example);
  return text + fmt::format("written to    {}\nnext          choir prepare codes CODEC_RUN {}",
                            folder, DialogueForm::agent(folder));
}

std::vector<std::string> manifests_of_corpus(const std::string& folder) {
  std::vector<std::string> manifests;
  const std::string inside = folder + "/dialogues";
  if (!fs::is_directory(inside)) return manifests;
  for (const auto& entry : fs::directory_iterator(inside))
    if (entry.path().extension() == ".jsonl") manifests.push_back(entry.path().string());
  std::sort(manifests.begin(), manifests.end());
  const auto train = std::find(manifests.begin(), manifests.end(), inside + "/train.jsonl");
  if (train != manifests.end()) std::rotate(manifests.begin(), train, train + 1);
  return manifests;
}

}  // namespace choir
