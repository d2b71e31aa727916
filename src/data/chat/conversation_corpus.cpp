#include "src/data/chat/conversation_corpus.hpp"

#include <algorithm>
#include <filesystem>

#include "choir/core/error.hpp"
#include "src/comm/agreement.hpp"
#include "src/core/file.hpp"
#include "src/core/json_value.hpp"
#include "src/core/text.hpp"
#include "src/data/chat/chat_program.hpp"

namespace choir {
namespace {

namespace fs = std::filesystem;

std::string folder_of(const std::string& path) {
  return fs::is_directory(path) ? path : fs::path(path).parent_path().string();
}

ChatForm form_beside(const std::string& path) {
  ChatForm form;
  for (const char* name : {"/vocab.json", "/tokenizer.json"})
    if (const std::string file = folder_of(path) + name; fs::exists(file))
      form.tokenizer = read_whole_file(file, kMostTokenizerMiB);
  const std::string meta = folder_of(path) + "/meta.json";
  if (!fs::exists(meta)) return form;
  const nlohmann::json json = read_json(read_whole_file(meta, kMostSettingsMiB), meta);
  if (!json.is_object()) throw DataError(fmt::format("'{}' is damaged", meta));
  form.chat_template = json.value("template", "");
  form.system = json.value("system", "");
  if (json.contains("program")) form.program = program_of_json(json);
  return form;
}

}  // namespace

ConversationCorpus ConversationCorpus::load(Communicator& world,
                                            const std::vector<SpeechLeaf>& leaves,
                                            const ConversationCorpusOptions& options) {
  CHOIR_CHECK(!leaves.empty(), "no folders");
  ConversationCorpus corpus;
  for (const SpeechLeaf& leaf : leaves) {
    std::string bytes, catalog;
    together(world, [&] {
      if (world.rank() != 0) return;
      const ConversationSet set = open_conversations(leaf.folder);
      bytes = set.serialise();
      if (set.clips() > 0)
        catalog = AudioCatalog::open(folder_of(leaf.folder) + "/audio").serialise();
      if (corpus.folders_.empty()) corpus.form_ = form_beside(leaf.folder);
    });
    broadcast_text(world, bytes);
    broadcast_text(world, catalog);
    Folder& folder = corpus.folders_.emplace_back();
    folder.leaf = leaf;
    folder.set = ConversationSet::deserialise(bytes, leaf.folder);
    if (!catalog.empty()) folder.catalog = AudioCatalog::deserialise(catalog);
  }
  ChatForm& form = corpus.form_;
  std::string stored = form.to_json();
  broadcast_text(world, stored);
  if (world.rank() != 0) form = ChatForm::from_json(stored, leaves.front().folder);
  together(world, [&] { corpus.choose(options); });
  return corpus;
}

void ConversationCorpus::choose(const ConversationCorpusOptions& options) {
  std::int64_t too_long = 0, no_target = 0, kept = 0;
  sample_rate_ = options.sample_rate;
  for (Folder& folder : folders_) {
    const ConversationSet& set = folder.set;
    const std::string& name = folder.leaf.folder;
    const std::uint64_t hash = options.vocab_hash != 0 ? options.vocab_hash : vocab_hash();
    if (set.vocab_hash() != hash)
      throw DataError(
          fmt::format("the vocabulary of '{}' ({:016x}) differs from that of {} ({:016x})", name,
                      set.vocab_hash(), options.vocab_hash != 0 ? "the model" : "the other data",
                      hash),
          "prepare it with the tokenizer that the model was trained with");
    if (options.vocab_size > 0 && set.vocab_size() > options.vocab_size)
      throw DataError(fmt::format("model.vocab_size is {}, the data '{}' needs {}",
                                  options.vocab_size, name, set.vocab_size()),
                      fmt::format("set model.vocab_size to {} or more", set.vocab_size()));
    if (set.clips() > 0 && !options.audio)
      throw DataError(
          fmt::format("'{}' has clips of audio, but this model has no audio input", name),
          "use a model of type salm");
    if (folder.catalog) {
      if (sample_rate_ == 0) sample_rate_ = folder.catalog->sample_rate();
      if (folder.catalog->sample_rate() != sample_rate_)
        throw DataError(fmt::format("'{}' has {} samples a second, not {}", name,
                                    folder.catalog->sample_rate(), sample_rate_),
                        "prepare it with --sample-rate");
    }
    for (std::int64_t i = 0; i < set.size(); ++i) {
      std::int64_t rows = set.tokens(i) - std::ssize(set.clips(i)) - 1;
      for (const ClipOfFile& clip : set.clips(i)) {
        rows += options.frames.rows(clip.samples);
        if (clip.utterance >= folder.catalog->size() ||
            (*folder.catalog)[clip.utterance].samples != clip.samples)
          throw DataError(fmt::format("conversation {} of '{}' does not match its audio", i, name),
                          "prepare both again with 'choir prepare chat'");
      }
      const std::int64_t targets = set.counted(i);
      if (targets == 0)
        ++no_target;
      else if (options.max_rows > 0 && rows > options.max_rows)
        ++too_long;
      else
        folder.items.push_back({static_cast<std::int32_t>(&folder - folders_.data()),
                                static_cast<std::int32_t>(i), static_cast<std::int32_t>(rows),
                                static_cast<std::int32_t>(targets)}),
            ++kept;
    }
    limit_items(folder.items, folder.leaf.limit);
  }
  std::vector<std::string> reasons;
  if (too_long > 0)
    reasons.push_back(fmt::format("longer than {} rows {}", options.max_rows, too_long));
  if (no_target > 0) reasons.push_back(fmt::format("without a target {}", no_target));
  if (!reasons.empty())
    left_out_ = fmt::format("{} of {} conversations left out: {}", too_long + no_target,
                            too_long + no_target + kept, join(reasons, ", "));
  if (kept == 0)
    throw DataError(fmt::format("no usable conversations in {}: {}", options.what, left_out_),
                    "allow longer conversations (model.block_size), or look at the data with "
                    "'choir prepare chat FILE --show 3'");
}

void ConversationCorpus::limit(std::int64_t conversations) {
  std::vector<SpeechItem> all;
  for (Folder& folder : folders_) {
    all.insert(all.end(), folder.items.begin(), folder.items.end());
    folder.items.clear();
  }
  limit_items(all, conversations);
  for (const SpeechItem& item : all)
    folders_[static_cast<std::size_t>(item.leaf)].items.push_back(item);
}

void ConversationCorpus::keep_durations(double least, double most) {
  for (Folder& folder : folders_)
    std::erase_if(folder.items, [&](const SpeechItem& item) {
      std::int64_t samples = 0;
      for (const ClipOfFile& clip : folder.set.clips(item.utterance)) samples += clip.samples;
      const double seconds = static_cast<double>(samples) / std::max(sample_rate_, 1);
      return seconds < least || (most > 0 && seconds > most);
    });
}

std::int64_t ConversationCorpus::conversations() const {
  std::int64_t count = 0;
  for (const Folder& folder : folders_) count += std::ssize(folder.items);
  return count;
}

std::int64_t ConversationCorpus::clips() const {
  std::int64_t count = 0;
  for (const Folder& folder : folders_) count += folder.set.clips();
  return count;
}

std::uint64_t ConversationCorpus::hash() const {
  std::uint64_t h = 0xcbf29ce484222325ull;
  for (const Folder& folder : folders_) h = (h ^ folder.set.hash()) * 0x100000001b3ull;
  return h;
}

std::vector<SpeechPoolItems> ConversationCorpus::pools(const SpeechMix& mix) const {
  std::vector<std::int64_t> counts;
  for (const Folder& folder : folders_) counts.push_back(std::ssize(folder.items));
  std::vector<SpeechPoolItems> pools;
  for (const SpeechPool& pool : pools_of(mix, counts)) {
    SpeechPoolItems& made = pools.emplace_back();
    made.probability = pool.probability;
    for (const int leaf : pool.leaves)
      made.items.insert(made.items.end(), items(leaf).begin(), items(leaf).end());
  }
  return pools;
}

}  // namespace choir
