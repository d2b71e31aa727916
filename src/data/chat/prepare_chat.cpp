#include "src/data/chat/prepare_chat.hpp"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <map>

#include "choir/core/error.hpp"
#include "src/comm/agreement.hpp"
#include "src/core/file.hpp"
#include "src/core/json_value.hpp"
#include "src/core/output.hpp"
#include "src/core/quantities.hpp"
#include "src/core/text.hpp"
#include "src/data/audio/packed_audio.hpp"
#include "src/data/audio/prepare_audio.hpp"
#include "src/data/chat/chat_program.hpp"
#include "src/data/chat/chat_template.hpp"
#include "src/data/chat/conversation_file.hpp"

namespace choir {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kAside = ".before";  // ending of the files of an older result

/// True for the name of a file or folder that prepare_chat() writes, without packed audio.
bool is_written(std::string_view name) {
  return name == kConversationFile || name == "meta.json" || name == "vocab.json" ||
         name == "tokenizer.json" || (name.starts_with("clips") && name.ends_with(".json"));
}

std::vector<fs::path> entries_of(const std::string& folder) {
  std::vector<fs::path> entries;
  std::error_code failure;
  for (const auto& entry : fs::directory_iterator(folder, failure)) entries.push_back(entry.path());
  return entries;
}

bool is_aside(const std::string& name) {
  return name.ends_with(kAside) && is_written(name.substr(0, name.size() - kAside.size()));
}

/// Moves the files that were put aside back to their names.
void move_back(const std::string& folder) {
  std::error_code failure;
  for (const fs::path& path : entries_of(folder)) {
    if (!is_aside(path.filename().string())) continue;
    const fs::path to = fs::path(path).replace_extension();
    fs::remove(to, failure);  // renaming one link of a file to another one does nothing
    fs::rename(path, to, failure);
  }
}

void remove_aside(const std::string& folder) {
  std::error_code failure;
  for (const fs::path& path : entries_of(folder))
    if (is_aside(path.filename().string())) fs::remove(path, failure);
}

void make_folder(const std::string& folder) {
  std::error_code failure;
  fs::create_directories(folder, failure);
  if (failure) throw StorageError(fmt::format("cannot create '{}': {}", folder, failure.message()));
  for (const auto& entry : fs::directory_iterator(folder)) {
    const std::string name = entry.path().filename().string();
    const bool ours = is_written(name) || is_aside(name) || name == "audio" ||
                      name == "deck.json" || name == "deck.before.json";
    if (!ours)
      throw DataError(fmt::format("folder '{}' contains '{}', which is not part of prepared chat",
                                  folder, name),
                      "choose an empty or a new folder");
  }
  // Remove first the file whose presence marks a complete folder.
  fs::remove(folder + "/" + kConversationFile, failure);
}

struct ClipManifests {
  std::vector<std::string> files, tars;  ///< empty, or one for each file
};

/// The distinct stretches of audio, in the order of first use.
class ClipTable {
 public:
  /// `place`: the conversation that has the clip, for messages; the first one counts.
  std::int32_t number_of(const AudioClip& clip, const std::string& place = {}) {
    const auto key = std::tuple(clip.archive, clip.path, clip.offset, clip.duration);
    const auto [at, fresh] = numbers_.try_emplace(key, static_cast<std::int32_t>(clips_.size()));
    if (fresh) {
      clips_.push_back(clip);
      places_.push_back(place);
    }
    return at->second;
  }
  std::int64_t size() const { return std::ssize(clips_); }
  /// Writes NeMo manifests of the clips: one for clips in files, or one for each tar in their
  /// order. A file of conversations has all the clips of its tar.
  ClipManifests write(const std::string& folder) const {
    ClipManifests made;
    std::vector<std::string> texts;
    for (std::size_t i = 0; i < clips_.size(); ++i) {
      const AudioClip& clip = clips_[i];
      const bool tarred = !clip.archive.empty();
      if (i == 0 || clip.archive != clips_[i - 1].archive) {
        made.files.push_back(tarred ? fmt::format("{}/clips_{}.json", folder, made.files.size())
                                    : folder + "/clips.json");
        if (tarred) made.tars.push_back(clip.archive);
        texts.emplace_back();
      }
      nlohmann::ordered_json line;
      line["audio_filepath"] =
          tarred ? clip.path : fs::absolute(clip.path).lexically_normal().string();
      line["offset"] = clip.offset;
      line["duration"] = clip.duration;
      line["text"] = "";
      line["_place"] = places_[i];
      texts.back() += dumped(line) + "\n";
    }
    for (std::size_t i = 0; i < texts.size(); ++i) write_whole_file(made.files[i], texts[i]);
    return made;
  }

 private:
  std::map<std::tuple<std::string, std::string, double, double>, std::int32_t> numbers_;
  std::vector<AudioClip> clips_;
  std::vector<std::string> places_;
};

struct Work {
  OpenedTokenizer opened;
  std::vector<EncodedConversation> encoded;
  ClipTable clips;
};

OpenedTokenizer opened_for(const PrepareChatOptions& options) {
  if (options.stored.empty()) return open_chat_tokenizer(options.tokenizer, options.chat_template);
  ChatForm form = ChatForm::from_json(options.stored, options.tokenizer);
  if (!options.chat_template.empty()) form.chat_template = options.chat_template;
  if (form.chat_template != name_of(ChatTemplate::own)) form.program = nullptr;
  return open_chat_tokenizer(form, options.tokenizer);
}

void encode_all(const std::vector<std::string>& files, const PrepareChatOptions& options,
                Work& work, PrepareChatSummary& summary) {
  ConversationList list = read_conversations(files, options.context, options.tars);
  work.opened = opened_for(options);
  const ChatOptions chat{
      .chat = work.opened.chat, .system = options.system, .program = work.opened.program};
  std::int64_t number = 0;
  for (const Conversation& conversation : list.conversations) {
    if (options.held_out > 0 && (++number % options.held_out == 0) != options.held) continue;
    EncodedConversation encoded = encode_conversation(conversation, chat, *work.opened.tokenizer);
    const std::int64_t tokens = std::ssize(encoded.ids);
    if (options.max_tokens > 0 && tokens > options.max_tokens) {
      list.drop(fmt::format("longer than {} tokens", options.max_tokens), conversation.place);
      continue;
    }
    if (std::count(encoded.counted.begin(), encoded.counted.end(), 1) == 0) {
      list.drop("no target", conversation.place);
      continue;
    }
    summary.turns += std::ssize(conversation.turns);
    summary.tokens += tokens;
    summary.longest = std::max(summary.longest, tokens);
    summary.counted += std::count(encoded.counted.begin(), encoded.counted.end(), 1);
    for (const AudioClip& clip : encoded.clips) work.clips.number_of(clip, conversation.place);
    work.encoded.push_back(std::move(encoded));
  }
  summary.conversations = std::ssize(work.encoded);
  summary.clips = work.clips.size();
  summary.dropped = list.dropped_text();
  summary.unused = list.unused_text();
  summary.vocab_size = work.opened.tokenizer->vocab_size();
  summary.chat_template = name_of(work.opened.chat);
  if (work.encoded.empty())
    throw DataError(
        fmt::format("no usable conversation in '{}': {}", files.front(), summary.dropped),
        "allow longer conversations with --max-tokens");
}

void write_folder(const std::string& folder, const PrepareChatOptions& options, Work& work,
                  PrepareChatSummary& summary) {
  const ChatTokenizer& tokenizer = *work.opened.tokenizer;
  ConversationSet set(tokenizer.vocab_size(), tokenizer.hash(), end_of_turn(work.opened));
  const AudioCatalog catalog =
      work.clips.size() > 0 ? AudioCatalog::open(folder + "/audio") : AudioCatalog();
  if (catalog.size() != work.clips.size())
    throw DataError(
        fmt::format("'{}/audio' has {} clips, not {}", folder, catalog.size(), work.clips.size()),
        "remove the folder and prepare it again");
  std::vector<ClipOfFile> clips;
  for (const EncodedConversation& encoded : work.encoded) {
    clips.clear();
    for (const AudioClip& clip : encoded.clips) {
      const std::int32_t number = work.clips.number_of(clip);
      clips.push_back({number, static_cast<std::int32_t>(catalog[number].samples)});
      summary.seconds += static_cast<double>(catalog[number].samples) / options.sample_rate;
    }
    set.add(encoded.ids, encoded.counted, clips);
  }
  write_whole_file(folder + "/" + work.opened.file_name, work.opened.json);
  nlohmann::ordered_json meta;
  meta["format"] = "choir-chat";
  meta["version"] = 1;
  meta["template"] = summary.chat_template;
  meta["system"] = options.system;
  if (work.opened.program != nullptr) {
    meta["program"] = work.opened.program->source();
    meta["program_tokens"] = work.opened.program->tokens();
  }
  meta["conversations"] = summary.conversations;
  meta["tokens"] = summary.tokens;
  meta["longest"] = summary.longest;
  meta["targets"] = summary.counted;
  meta["clips"] = summary.clips;
  meta["vocab_size"] = summary.vocab_size;
  meta["dropped"] = summary.dropped;
  write_whole_file(folder + "/meta.json", dumped(meta, 1) + "\n");
  write_whole_file(folder + "/" + kConversationFile, set.serialise());
}

}  // namespace

std::string PrepareChatSummary::to_string() const {
  std::string text = fmt::format(
      "template      {}, vocabulary of {}\nconversations {}, with {} and {}\ntokens        {}, the "
      "longest conversation {}; {:.1f} % are targets\n",
      chat_template, format_count(vocab_size), format_count(conversations),
      choir::counted(turns, "turn"), choir::counted(clips, "clip"), format_count(tokens),
      format_count(longest),
      100 * static_cast<double>(counted) / static_cast<double>(std::max<std::int64_t>(tokens, 1)));
  if (!dropped.empty()) text += fmt::format("left out      {}\n", dropped);
  if (!unused.empty()) text += fmt::format("keys not used {}\n", unused);
  return text +
         fmt::format("written to    {}\nin a deck     data.train = [\"{}\"]", folder, folder);
}

ChatFolderUndo::ChatFolderUndo(std::string folder) : folder_(std::move(folder)) {
  std::error_code failure;
  began_ = fs::exists(folder_, failure);
  const auto there = [&](const std::string& name) {
    return fs::exists(folder_ + "/" + name, failure);
  };
  if (there(kConversationFile))
    remove_aside(folder_);  // a killed process had completed its result
  else if (there(kConversationFile + std::string(kAside)))
    move_back(folder_);  // it had not
  for (const fs::path& path : entries_of(folder_)) before_.insert(path.filename().string());
  if (!there(kConversationFile)) return;
  for (const std::string& name : before_) {
    const std::string path = folder_ + "/" + name, aside = path + std::string(kAside);
    if (!is_written(name)) continue;
    fs::create_hard_link(path, aside, failure);
    if (failure) fs::copy_file(path, aside, failure);
  }
}

ChatFolderUndo::~ChatFolderUndo() {
  if (kept_) return;
  std::error_code failure;
  if (!began_) {
    fs::remove_all(folder_, failure);
    return;
  }
  for (const fs::path& path : entries_of(folder_)) {
    const std::string name = path.filename().string();
    if (!before_.contains(name) && (is_written(name) || name == "audio"))
      fs::remove_all(path, failure);
  }
  move_back(folder_);
}

void ChatFolderUndo::keep() {
  kept_ = true;
  remove_aside(folder_);
}

PrepareChatSummary prepare_chat(Communicator& world, Logger& log,
                                const std::vector<std::string>& files, const std::string& folder,
                                const PrepareChatOptions& options) {
  Work work;
  PrepareChatSummary summary;
  summary.folder = folder;
  ClipManifests clips;
  together(world, [&] {
    if (world.rank() != 0) return;
    encode_all(files, options, work, summary);
    make_folder(folder);
    clips = work.clips.write(folder);
  });
  for (std::vector<std::string>* names : {&clips.files, &clips.tars}) {
    std::string text = join(*names, "\n");
    broadcast_text(world, text);
    *names = text.empty() ? std::vector<std::string>() : split(text, '\n');
  }
  if (!clips.files.empty()) {
    PrepareAudioOptions audio;
    audio.sample_rate = options.sample_rate;
    audio.manifest.tars = clips.tars;
    audio.skip_hint = "repair the recording, or leave its conversation out of the file";
    audio.channel_hint = "mix the channels into one: ffmpeg -i FILE.wav -ac 1 MONO.wav";
    prepare_audio(world, log, clips.files, folder + "/audio", audio);
  }
  together(world, [&] {
    if (world.rank() == 0) write_folder(folder, options, work, summary);
  });
  return summary;
}

std::string show_chat(const std::vector<std::string>& files, std::int64_t count,
                      const PrepareChatOptions& options, std::string_view before,
                      std::string_view behind) {
  const ConversationList list = read_conversations(files, options.context, options.tars);
  const OpenedTokenizer opened = opened_for(options);
  const ChatOptions chat{.chat = opened.chat, .system = options.system, .program = opened.program};
  std::string text;
  for (std::int64_t i = 0; i < std::min(count, std::ssize(list.conversations)); ++i) {
    const Conversation& conversation = list.conversations[static_cast<std::size_t>(i)];
    const EncodedConversation encoded = encode_conversation(conversation, chat, *opened.tokenizer);
    text += fmt::format(
        "--- {}: {}, {} of {} tokens are targets\n{}\n", printable_name(conversation.place),
        counted(std::ssize(conversation.turns), "turn"),
        std::count(encoded.counted.begin(), encoded.counted.end(), 1), encoded.ids.size(),
        show_encoded(encoded, *opened.tokenizer, before, behind));
  }
  if (const std::string dropped = list.dropped_text(); !dropped.empty())
    text += printable(dropped) + "\n";
  if (const std::string unused = list.unused_text(); !unused.empty())
    text += fmt::format("keys not used: {}\n", unused);
  return text;
}

}  // namespace choir
