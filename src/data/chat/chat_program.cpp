#include "src/data/chat/chat_program.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <optional>

#include "src/core/file.hpp"
#include "src/core/json_value.hpp"
#include "src/core/text.hpp"

namespace choir {
namespace {

namespace fs = std::filesystem;

// The texts of turns stand between marks while the program runs. No UTF-8 text has these bytes.
constexpr char kOpens = '\xFF', kCloses = '\xFE', kEndsMark = '\xFD';
constexpr std::string_view kWhite = " \t\n\r\f\v";
constexpr const char* kCure =
    "specify a built-in template, for example plain or chatml (--template)";

std::string mark(char kind, std::size_t turn) {
  return kind + std::to_string(turn) + kEndsMark;
}

/// White space around the text stays outside the marks, because many programs trim it.
std::string marked(const std::string& text, std::size_t turn) {
  const std::size_t begin = std::min(text.find_first_not_of(kWhite), text.size());
  const std::size_t end = begin == text.size() ? begin : text.find_last_not_of(kWhite) + 1;
  if (begin == end) return text;
  return text.substr(0, begin) + mark(kOpens, turn) + text.substr(begin, end - begin) +
         mark(kCloses, turn) + text.substr(end);
}

/// A token is a text, or an object with the text and flags.
void add_tokens(const nlohmann::json& json, std::map<std::string, std::string>& tokens) {
  if (!json.is_object()) return;
  for (const auto& [key, value] : json.items()) {
    if (!key.ends_with("_token")) continue;
    if (value.is_string())
      tokens.emplace(key, value.get<std::string>());
    else if (value.is_object() && value.contains("content") && value["content"].is_string())
      tokens.emplace(key, value["content"].get<std::string>());
  }
}

std::ptrdiff_t tags_in(std::string_view text) {
  std::ptrdiff_t tags = 0;
  for (auto at = text.find(kAudioTag); at != text.npos; at = text.find(kAudioTag, at + 1)) ++tags;
  return tags;
}

std::vector<Turn> with_folded_system(std::vector<Turn> turns) {
  const Turn system = turns.front();
  turns.erase(turns.begin());
  if (turns.empty() || turns.front().role != "user")
    turns.insert(turns.begin(), {.role = "user", .text = system.text});
  else
    turns.front().text = system.text + "\n\n" + turns.front().text;
  return turns;
}

/// The text that the program wrote, without the marks.
struct Rendered {
  static constexpr std::size_t kNowhere = std::string::npos;
  struct Span {
    std::size_t open = kNowhere, close = kNowhere;
    int opens = 0;
  };
  std::string text;
  std::vector<bool> said;  ///< for each byte: true inside the text of a turn
  std::vector<Span> spans;

  Rendered(const std::string& marked, std::size_t turns) : spans(turns) {
    std::optional<std::size_t> inside;
    for (std::size_t at = 0; at < marked.size(); ++at) {
      const char c = marked[at];
      if (c != kOpens && c != kCloses) {
        text += c;
        said.push_back(inside.has_value());
        continue;
      }
      std::size_t turn = 0;
      for (++at; at < marked.size() && marked[at] != kEndsMark; ++at)
        turn = turn * 10 + static_cast<std::size_t>(marked[at] - '0');
      if (turn >= spans.size()) continue;
      if (c == kOpens) {
        spans[turn].open = text.size();
        ++spans[turn].opens;
        inside = turn;
      } else {
        spans[turn].close = text.size();
        inside.reset();
      }
    }
  }
};

/// The special tokens in the text, found by their first character.
class ControlFinder {
 public:
  explicit ControlFinder(const ChatTokenizer& tokenizer) : tokenizer_(tokenizer) {
    for (std::string& token : tokenizer.controls())
      if (!token.empty()) by_first_[static_cast<unsigned char>(token[0])].push_back(token);
    for (auto& list : by_first_)
      std::sort(list.begin(), list.end(),
                [](const auto& a, const auto& b) { return a.size() > b.size(); });
  }
  /// The longest token at `at` whose bytes the program wrote itself; "" for none.
  std::string_view at(const Rendered& rendered, std::size_t at) const {
    if (rendered.said[at]) return {};
    const std::string_view rest = std::string_view(rendered.text).substr(at);
    for (const std::string& token : by_first_[static_cast<unsigned char>(rest[0])])
      if (rest.starts_with(token) &&
          std::none_of(rendered.said.begin() + static_cast<std::ptrdiff_t>(at),
                       rendered.said.begin() + static_cast<std::ptrdiff_t>(at + token.size()),
                       [](bool said) { return said; }))
        return token;
    return {};
  }
  std::int32_t id_of(std::string_view token) const { return *tokenizer_.control(token); }

 private:
  const ChatTokenizer& tokenizer_;
  std::array<std::vector<std::string>, 256> by_first_;
};

class ProgramEncoder {
 public:
  ProgramEncoder(const ChatProgram& program, const Conversation& conversation,
                 const std::string& system, ChatTokenizer& tokenizer)
      : program_(program),
        conversation_(conversation),
        tokenizer_(tokenizer),
        finder_(tokenizer),
        turns_(conversation.turns) {
    if (!system.empty() && (turns_.empty() || turns_.front().role != "system"))
      turns_.insert(turns_.begin(), {.role = "system", .text = system});
    answer_follows_ = turns_.empty() || turns_.back().role != "assistant";
  }

  EncodedConversation encode() {
    const Rendered rendered(written(), turns_.size());
    counted_.assign(rendered.text.size() + 1, false);
    std::size_t done = 0;
    for (std::size_t i = 0; i < turns_.size(); ++i) {
      if (turns_[i].role == "assistant")
        count(rendered, i, done);
      else if (rendered.spans[i].open == Rendered::kNowhere && !trim(turns_[i].text).empty())
        refuse(fmt::format("leaves out turn {}, of the {}", i + 1, turns_[i].role));
      if (rendered.spans[i].close != Rendered::kNowhere) done = rendered.spans[i].close;
      out_.clips.insert(out_.clips.end(), turns_[i].clips.begin(), turns_[i].clips.end());
    }
    push(rendered);
    const auto clips = std::count(out_.ids.begin(), out_.ids.end(), kAudioPlaceholder);
    std::ptrdiff_t tags = 0;
    for (const Turn& turn : turns_) tags += tags_in(turn.text);
    if (clips != tags) refuse(fmt::format("writes {} of {} clips", clips, tags));
    return std::move(out_);
  }
  /// The text of the token behind the last answer.
  const std::string& last_end() const { return last_end_; }

 private:
  [[noreturn]] void refuse(const std::string& what) const {
    throw DataError(fmt::format("{}: the chat template {}", conversation_.place, what), kCure);
  }

  std::string written() {
    try {
      return with_system(program_.render(turns_, answer_follows_));
    } catch (const jinja::Refusal& refusal) {
      if (turns_.empty() || turns_.front().role != "system") throw_at_place(refusal);
    } catch (const DataError& error) {
      throw_at_place(error);
    }
    turns_ = with_folded_system(turns_);
    try {
      return program_.render(turns_, answer_follows_);
    } catch (const DataError& error) {
      throw_at_place(error);
    }
  }
  /// Some programs put the system turn into the last turn of all, if that is a question (Mistral's
  /// third version). Then the text in front of the last answer is what they write without it, which
  /// is the prompt that the model gets.
  std::string with_system(const std::string& whole) const {
    const bool lost = turns_.size() > 2 && turns_.front().role == "system" &&
                      !trim(turns_.front().text).empty() && !answer_follows_ &&
                      whole.find(mark(kOpens, 0)) == std::string::npos;
    if (!lost) return whole;
    const std::vector<Turn> asked(turns_.begin(), turns_.end() - 1);
    const std::string prompt = program_.render(asked, true);
    const std::string question = mark(kCloses, asked.size() - 1);
    const std::size_t in_prompt = prompt.find(question), in_whole = whole.find(question);
    if (in_prompt == std::string::npos || in_whole == std::string::npos) return whole;
    const std::string_view end = std::string_view(prompt).substr(in_prompt);
    if (!std::string_view(whole).substr(in_whole).starts_with(end)) return whole;
    return prompt + whole.substr(in_whole + end.size());
  }
  [[noreturn]] void throw_at_place(const DataError& error) const {
    throw DataError(fmt::format("{}: {}", conversation_.place, error.what()), kCure);
  }

  /// Marks the targets of an answer; `done` is the end of the turn in front of it.
  void count(const Rendered& rendered, std::size_t turn, std::size_t done) {
    const Rendered::Span& span = rendered.spans[turn];
    const std::string& header = program_.header();
    const std::size_t somewhere = std::min(span.open, span.close);
    std::size_t start = span.open;
    if (somewhere != Rendered::kNowhere && !header.empty()) {
      const std::size_t at = rendered.text.rfind(header, somewhere);
      if (at != std::string::npos && at >= done && at + header.size() <= somewhere &&
          !rendered.said[at])
        start = at + header.size();
    } else {
      // A blank in front of a word belongs to the word's token.
      while (start != Rendered::kNowhere && start > done && !rendered.said[start - 1] &&
             kWhite.find(rendered.text[start - 1]) != std::string_view::npos)
        --start;
    }
    const bool lost = start == Rendered::kNowhere || span.close == Rendered::kNowhere ||
                      span.opens > 1 || span.close < start;
    if (lost && (answer_follows_ || !turns_[turn].counts)) return;
    if (lost) refuse(fmt::format("changes the text of turn {}, an answer", turn + 1));
    std::size_t end = span.close;
    std::string_view token;
    for (; end < rendered.text.size() && token.empty(); ++end) {
      token = finder_.at(rendered, end);
      if (token.empty() && kWhite.find(rendered.text[end]) == std::string_view::npos) break;
    }
    if (token.empty()) refuse("ends answers with no special token of the tokenizer");
    last_end_ = token;
    if (!turns_[turn].counts) return;
    std::fill(counted_.begin() + static_cast<std::ptrdiff_t>(start),
              counted_.begin() + static_cast<std::ptrdiff_t>(end), true);
  }

  void push(const Rendered& rendered) {
    std::size_t from = 0, at = 0;
    while (at < rendered.text.size()) {
      const std::string_view token = finder_.at(rendered, at);
      const bool changes = at > from && counted_[at] != counted_[at - 1];
      if (!token.empty() || changes) {
        text(rendered, from, at);
        from = at;
      }
      if (token.empty()) {
        ++at;
        continue;
      }
      out_.ids.push_back(finder_.id_of(token));
      out_.counted.push_back(counted_[at]);
      at += token.size();
      from = at;
      place_ = ChatPlace::behind_token;
    }
    text(rendered, from, at);
  }

  /// Appends text. Audio tags become placeholders.
  void text(const Rendered& rendered, std::size_t from, std::size_t to) {
    std::string_view rest = std::string_view(rendered.text).substr(from, to - from);
    const std::string_view tag = kAudioTag;
    const bool counted = counted_[from];
    while (!rest.empty()) {
      const auto at = rest.find(tag);
      if (const auto piece = rest.substr(0, at); !piece.empty()) {
        for (const std::int32_t id : tokenizer_.encode_at(piece, conversation_.place, place_))
          add(id, counted);
        place_ = ChatPlace::inside;
      }
      if (at == std::string_view::npos) return;
      add(kAudioPlaceholder, false);
      place_ = ChatPlace::behind_token;
      rest.remove_prefix(at + tag.size());
    }
  }
  void add(std::int32_t id, bool counted) {
    out_.ids.push_back(id);
    out_.counted.push_back(counted);
  }

  const ChatProgram& program_;
  const Conversation& conversation_;
  ChatTokenizer& tokenizer_;
  ControlFinder finder_;
  std::vector<Turn> turns_;
  bool answer_follows_ = false;
  std::vector<bool> counted_;
  ChatPlace place_ = ChatPlace::start;
  std::string last_end_;
  EncodedConversation out_;
};

}  // namespace

ChatProgram::ChatProgram(std::string source, std::map<std::string, std::string> tokens)
    : source_(std::move(source)), tokens_(std::move(tokens)), program_(jinja::parse(source_)) {
  // The header is what the program adds for an answer that follows.
  const std::vector<Turn> asked{{.role = "user", .text = "a"}};
  try {
    const std::string without = render(asked, false), with = render(asked, true);
    // Phi-3's writes an end of the text where no header stands.
    const auto differs = std::mismatch(with.begin(), with.end(), without.begin(), without.end());
    header_ = with.substr(static_cast<std::size_t>(differs.first - with.begin()));
  } catch (const DataError&) {
    header_.clear();  // each conversation reports the error with its place
  }
}

std::shared_ptr<const ChatProgram> ChatProgram::of_files(
    const std::map<std::string, std::string>& files) {
  std::string source;
  std::map<std::string, std::string> tokens;
  for (const char* name : {"tokenizer_config.json", "special_tokens_map.json"}) {
    const auto found = files.find(name);
    if (found == files.end() || found->second.empty()) continue;
    const nlohmann::json json = read_json(found->second, name, {.keys = kAnyNumberOfKeys});
    add_tokens(json, tokens);
    if (!json.is_object() || !json.contains("chat_template")) continue;
    const nlohmann::json& programs = json["chat_template"];
    if (programs.is_string()) source = programs.get<std::string>();
    if (programs.is_array())
      for (const auto& one : programs)
        if (one.is_object() && one.value("name", "") == "default")
          source = one.value("template", "");
  }
  if (const auto found = files.find("chat_template.jinja");
      found != files.end() && !found->second.empty())
    source = found->second;
  if (source.empty()) return nullptr;
  return std::make_shared<const ChatProgram>(std::move(source), std::move(tokens));
}

std::shared_ptr<const ChatProgram> program_of_json(const nlohmann::json& json) {
  if (!json.contains("program") || !json["program"].is_string()) return nullptr;
  std::map<std::string, std::string> tokens;
  if (json.contains("program_tokens")) add_tokens(json["program_tokens"], tokens);
  return std::make_shared<const ChatProgram>(json["program"].get<std::string>(), std::move(tokens));
}

std::shared_ptr<const ChatProgram> ChatProgram::beside(const std::string& path) {
  std::map<std::string, std::string> files;
  for (const char* name :
       {"chat_template.jinja", "tokenizer_config.json", "special_tokens_map.json"}) {
    const fs::path file = fs::path(path).parent_path() / name;
    std::error_code ignored;
    if (fs::is_regular_file(file, ignored))
      files[name] = read_whole_file(file.string(), kMostTokenizerMiB);
  }
  return of_files(files);
}

std::string ChatProgram::render(const std::vector<Turn>& turns, bool answer_follows) const {
  jinja::List messages;
  for (std::size_t i = 0; i < turns.size(); ++i)
    messages.emplace_back(
        jinja::Pairs{{"role", turns[i].role}, {"content", marked(turns[i].text, i)}});
  jinja::Pairs variables{{"messages", std::move(messages)},
                         {"add_generation_prompt", answer_follows},
                         {"tools", jinja::Value::None{}},
                         {"documents", jinja::Value::None{}}};
  for (const auto& [name, text] : tokens_) variables.emplace_back(name, text);
  return jinja::run(program_, variables);
}

EncodedConversation encode_by_program(const ChatProgram& program, const Conversation& conversation,
                                      const std::string& system, ChatTokenizer& tokenizer) {
  return ProgramEncoder(program, conversation, system, tokenizer).encode();
}

TurnEnd end_of_turn(const ChatProgram& program, ChatTokenizer& tokenizer) {
  const Conversation probe{
      .place = "a first conversation",
      .id = "",
      .turns = {{.role = "user", .text = "a"}, {.role = "assistant", .text = "b"}}};
  ProgramEncoder encoder(program, probe, "", tokenizer);
  encoder.encode();
  return {*tokenizer.control(encoder.last_end()), encoder.last_end()};
}

}  // namespace choir
