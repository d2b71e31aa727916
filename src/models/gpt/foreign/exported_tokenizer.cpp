#include "src/models/gpt/foreign/exported_tokenizer.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <filesystem>

#include "src/core/file.hpp"
#include "src/core/json_value.hpp"
#include "src/core/text.hpp"
#include "src/data/chat/chat_program.hpp"
#include "src/data/chat/chat_template.hpp"
#include "src/data/vocabulary/vocabulary_model.hpp"
#include "src/models/gpt/foreign/gguf.hpp"
#include "src/store/directory.hpp"

namespace choir {
namespace {

namespace fs = std::filesystem;

constexpr const char* kGguf = "tokenizer.gguf";  ///< as an import keeps it

bool has_file(const std::string& folder, const char* name) {
  std::error_code ignored;
  return !folder.empty() && fs::is_regular_file(fs::path(folder) / name, ignored);
}

std::string path_in(const std::string& folder, const char* name) {
  return (fs::path(folder) / name).string();
}

/// The vocabulary of the files, if they are of a known kind.
std::optional<Vocabulary> vocabulary_in(const std::string& folder) {
  for (const char* name : {"tokenizer.json", "tokenizer.model", "tekken.json", "vocab.json"}) {
    if (!has_file(folder, name)) continue;
    try {
      return Vocabulary::load(path_in(folder, name));
    } catch (const DataError&) {
      continue;
    }
  }
  return std::nullopt;
}

TokenizerSettings settings_in(const std::string& folder) {
  TokenizerSettings settings = TokenizerSettings::of_folder(folder);
  if (settings.empty() && has_file(folder, kGguf))
    settings = TokenizerSettings::of_gguf(GgufReader(path_in(folder, kGguf)).metadata());
  return settings;
}

/// True for the JSON of a SentencePiece model in this program's own form, which no other program
/// reads.
bool is_own_form(const std::string& path) {
  const std::string text = read_text_file(path);
  const std::size_t first = text.find('"');
  return first != std::string::npos && std::string_view(text).substr(first).starts_with("\"kind\"");
}

/// Makes the end of a turn and the template those of the conversations.
void follow_conversations(const TokenizerSource& source, const ChatForm& form,
                          ExportedTokenizer& made) {
  const OpenedTokenizer opened =
      chat_tokenizer_of(source.vocabulary, "", source.model_ids, "the checkpoint");
  const ChatTokenizer& tokenizer = *opened.tokenizer;
  for (std::int32_t id = made.vocabulary->size(); id < tokenizer.vocab_size(); ++id)
    made.added.push_back({id, tokenizer.decode({id})});
  const SpecialToken end{end_of_turn(opened), end_of_turn_text(opened)};
  const std::vector<std::int64_t> before = made.settings.ends();
  const bool pieces = made.vocabulary->kind() == VocabularyKind::sentencepiece;
  if (pieces || made.vocabulary->kind() == VocabularyKind::bpe)
    made.settings.add_tokens(made.added);
  made.settings.end_turns_with(end);
  if (before.empty() || before.front() != end.id)
    made.notes.push_back(fmt::format(
        "generation ends with {} ({}), which ended the turns of the training data{}", end.text,
        end.id, before.empty() ? "" : fmt::format("; before: {}", before.front())));
  const std::string kept = made.settings.chat_template();
  const bool same = opened.program != nullptr ? opened.program->source() == kept
                                              : template_written_by(kept) == opened.chat;
  if (!kept.empty() && same && kept.find(form.system) != std::string::npos) return;
  made.settings.set_chat_template(
      opened.program != nullptr
          ? with_standing_system(opened.program->source(), form.system)
          : jinja_program(opened.chat, tokenizer,
                          {.system = form.system, .blank_before_answer = pieces}));
  made.notes.push_back(fmt::format("chat template: {}, in which the run was trained{}",
                                   name_of(opened.chat),
                                   kept.empty() ? "" : ", in place of the imported model's"));
}

/// The letter of GPT-2's alphabet for a byte: 33 to 126, 161 to 172 and 174 to 255 stand for
/// themselves, and the others are the letters from 256 on.
std::string letter_of_byte(unsigned byte) {
  const auto plain = [](unsigned b) {
    return (b >= 33 && b <= 126) || (b >= 161 && b <= 172) || b >= 174;
  };
  unsigned letter = byte;
  if (!plain(byte)) {
    letter = 256;
    for (unsigned b = 0; b < byte; ++b) letter += plain(b) ? 0 : 1;
  }
  if (letter < 0x80) return {static_cast<char>(letter)};
  return {static_cast<char>(0xc0 | letter >> 6), static_cast<char>(0x80 | (letter & 0x3f))};
}

/// tokenizer.json of a vocabulary of characters or bytes, with which the library `tokenizers` gives
/// the same ids. A character outside the vocabulary is an error there, as it is here.
std::string plain_tokenizer_json(const Vocabulary& vocabulary,
                                 const std::vector<SpecialToken>& added) {
  const bool bytes = vocabulary.kind() == VocabularyKind::byte;
  nlohmann::ordered_json json, vocab = nlohmann::ordered_json::object();
  for (int id = 0; id < vocabulary.size(); ++id) {
    const std::string piece = vocabulary.piece(id);
    if (bytes && piece.size() != 1) continue;
    vocab[bytes ? letter_of_byte(static_cast<unsigned char>(piece[0])) : piece] = id;
  }
  json["version"] = "1.0";
  json["truncation"] = json["padding"] = nullptr;
  json["added_tokens"] = nlohmann::ordered_json::array();
  for (const SpecialToken& token : added)
    json["added_tokens"].push_back({{"id", token.id},
                                    {"content", token.text},
                                    {"single_word", false},
                                    {"lstrip", false},
                                    {"rstrip", false},
                                    {"normalized", false},
                                    {"special", true}});
  json["normalizer"] = nullptr;
  if (bytes) {
    json["pre_tokenizer"] = {{"type", "ByteLevel"},
                             {"add_prefix_space", false},
                             {"trim_offsets", true},
                             {"use_regex", false}};
    json["post_processor"] = nullptr;
    json["decoder"] = json["pre_tokenizer"];
    json["model"] = {{"type", "BPE"},
                     {"dropout", nullptr},
                     {"unk_token", nullptr},
                     {"continuing_subword_prefix", nullptr},
                     {"end_of_word_suffix", nullptr},
                     {"fuse_unk", false},
                     {"byte_fallback", false},
                     {"vocab", vocab},
                     {"merges", nlohmann::ordered_json::array()}};
  } else {
    json["pre_tokenizer"] = {{"type", "Split"},
                             {"pattern", {{"Regex", "[\\s\\S]"}}},
                             {"behavior", "Isolated"},
                             {"invert", false}};
    json["post_processor"] = nullptr;
    json["decoder"] = {{"type", "Fuse"}};
    json["model"] = {{"type", "WordLevel"}, {"vocab", vocab}, {"unk_token", "<unknown>"}};
  }
  return dumped(json, 2) + "\n";
}

/// Names the class with which transformers opens a tokenizer.json of any kind.
void name_tokenizer_class(const fs::path& folder) {
  const std::string path = (folder / "tokenizer_config.json").string();
  nlohmann::ordered_json json = nlohmann::ordered_json::object();
  if (fs::exists(path)) json = parsed_ordered_json(read_text_file(path));
  if (!json.contains("tokenizer_class")) json["tokenizer_class"] = "PreTrainedTokenizerFast";
  if (!json.contains("clean_up_tokenization_spaces")) json["clean_up_tokenization_spaces"] = false;
  write_text_file(path, dumped(json, 2) + "\n");
}

}  // namespace

ExportedTokenizer exported_tokenizer(const TokenizerSource& source) {
  ExportedTokenizer made;
  std::error_code ignored;
  if (fs::is_directory(source.folder, ignored)) made.folder = source.folder;
  ChatForm form;
  if (!source.vocabulary.empty()) {
    form = ChatForm::from_json(source.vocabulary, "the checkpoint");
    made.vocabulary = Vocabulary::from_json(source.vocabulary, "the checkpoint");
    const auto kept = vocabulary_in(made.folder);
    if (kept && !same_tokens(*kept, *made.vocabulary)) {
      made.notes.push_back(fmt::format(
          "left out: the files in {}, because the checkpoint was trained with another vocabulary",
          made.folder));
      made.folder = "";
    }
  }
  if (!made.folder.empty()) made.settings = settings_in(made.folder);
  if (made.settings.empty() && made.vocabulary)
    made.settings = TokenizerSettings::of_vocabulary(*made.vocabulary);
  if (!source.trained || !made.vocabulary || form.chat_template.empty()) return made;
  try {
    follow_conversations(source, form, made);
  } catch (const DataError& error) {
    made.notes.push_back(fmt::format("left out: the end of a turn and the template {}: {}",
                                     form.chat_template, error.what()));
  }
  return made;
}

GgufMetadata gguf_of(const ExportedTokenizer& tokenizer, std::int64_t vocab_size) {
  GgufMetadata m;
  if (has_file(tokenizer.folder, kGguf))
    m = tokenizer_of(GgufReader(path_in(tokenizer.folder, kGguf)).metadata());
  // A run may have more rows than the imported model had tokens.
  const auto* tokens = m.get_array<std::string>("tokenizer.ggml.tokens");
  if (tokens == nullptr || (tokenizer.vocabulary && std::ssize(*tokens) != vocab_size))
    m = tokenizer_of_vocabulary(tokenizer.vocabulary ? tokenizer.vocabulary->to_json() : "",
                                vocab_size);
  return tokenizer.settings.added_to(with_control_tokens(m, tokenizer.added));
}

std::vector<std::string> write_tokenizer(const ExportedTokenizer& tokenizer,
                                         const std::string& folder, const WrittenFiles& files) {
  const fs::path out = folder;
  std::vector<std::string> notes, except = files.except;
  except.emplace_back(kGguf);
  const auto excepted = [&](const std::string& name) {
    return std::find(except.begin(), except.end(), name) != except.end();
  };
  for (const auto& [name, text] : tokenizer.settings.files())
    if (!excepted(name)) write_text_file((out / name).string(), text);
  std::error_code failed;
  if (!tokenizer.folder.empty())
    for (const auto& entry : fs::directory_iterator(tokenizer.folder)) {
      const fs::path name = entry.path().filename();
      if (excepted(name.string()) || !entry.is_regular_file() ||
          tokenizer.settings.files().contains(name.string()))
        continue;
      constexpr std::size_t kMostMiB = 256;
      if (const std::string excess = file_excess(entry.path().string(), kMostMiB); !excess.empty())
        throw StorageError(fmt::format("'{}' {}", entry.path().string(), excess),
                           "is it the file that its name says?");
      if (name == "tokenizer.json" && is_own_form(entry.path().string())) continue;
      fs::copy_file(entry.path(), out / name, failed);
      if (failed)
        throw StorageError(fmt::format("cannot copy '{}' to '{}': {}", entry.path().string(),
                                       out.string(), failed.message()),
                           "is the disk full?");
    }
  if (tokenizer.vocabulary && !fs::exists(out / "tokenizer.json", failed) &&
      !fs::exists(out / "tokenizer.model", failed)) {
    const VocabularyKind kind = tokenizer.vocabulary->kind();
    if (kind == VocabularyKind::bpe)
      tokenizer.vocabulary->save((out / "tokenizer.json").string());
    else if (kind == VocabularyKind::sentencepiece)
      tokenizer.vocabulary->save((out / "tokenizer.model").string());
    else {
      write_text_file((out / "tokenizer.json").string(),
                      plain_tokenizer_json(*tokenizer.vocabulary, tokenizer.added));
      name_tokenizer_class(out);
    }
  }
  if (const auto& others = tokenizer.settings.other_templates(); !others.empty())
    notes.push_back(fmt::format("left out: the further chat templates {}", join(others, ", ")));
  return notes;
}

}  // namespace choir
