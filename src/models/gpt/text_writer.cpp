#include "src/models/gpt/text_writer.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "src/core/json_value.hpp"
#include "src/core/output.hpp"
#include "src/data/vocabulary/utf8.hpp"
#include "src/models/gpt/generator.hpp"
#include "src/models/gpt/gpt.hpp"
#include "src/run/run_setup.hpp"

namespace choir {
namespace {

Vocabulary vocabulary_of(const LoadedModel& loaded) {
  if (loaded.vocabulary.empty())
    throw DataError(
        "the checkpoint has no vocabulary: its token files had no vocab.json, or the imported "
        "model had no tokenizer that choir reads",
        "give token ids with --ids, or put tokenizer.json or tokenizer.model beside the weights "
        "and import the model again");
  return Vocabulary::from_json(loaded.vocabulary, loaded.checkpoint.path);
}

}  // namespace

TextWriter::TextWriter(const LoadedModel& loaded, TextOptions options, bool writes)
    : loaded_(loaded),
      options_(std::move(options)),
      writes_(writes),
      vocabulary_(vocabulary_of(loaded)) {
  choice_ = options_.choice;
  if (const auto end = vocabulary_.end_of_text()) choice_.stop.push_back(*end);
  if (!options_.chat) return;
  chat_ = chat_tokenizer_of(loaded.vocabulary, options_.chat_template,
                            model_of(loaded.deck).vocab_size(), loaded.checkpoint.path);
  choice_.stop.push_back(end_of_turn(chat_));
  if (options_.system.empty()) options_.system = chat_.system;
}

void TextWriter::write_all(const std::vector<Prompt>& prompts) {
  std::vector<Exchange> exchanges;
  for (std::size_t i = 0; i < prompts.size(); ++i) {
    const std::vector<std::int32_t> ids = fitting(prompts[i]);
    for (std::int64_t sample = 0; sample < options_.samples; ++sample)
      exchanges.push_back({.prompt = &prompts[i],
                           .number = static_cast<std::int64_t>(i) + 1,
                           .sample = sample,
                           .ids = ids,
                           .text = "",
                           .answer = {}});
  }
  several_ = exchanges.size() > 1;
  const auto together = static_cast<std::size_t>(options_.batch);
  const std::span all(exchanges);
  for (std::size_t at = 0; at < all.size(); at += together)
    answer(all.subspan(at, std::min(together, all.size() - at)));
}

void TextWriter::converse(const std::string& line) {
  if (said_.turns.empty() && !options_.system.empty())
    said_.turns.push_back({.role = "system", .text = options_.system});
  said_.turns.push_back({.role = "user", .text = line});
  said_.place = "standard input";
  Exchange turn{
      .prompt = &said_, .number = turn_++, .ids = encode(said_), .text = "", .answer = {}};
  answer({&turn, 1});
  said_.turns.push_back({.role = "assistant", .text = turn.text});
}

std::vector<std::int32_t> TextWriter::encode(const Prompt& prompt) {
  if (options_.chat) {
    Conversation asked{.place = prompt.place, .id = "", .turns = prompt.turns};
    if (asked.turns.empty()) asked.turns.push_back({.role = "user", .text = prompt.text});
    return encode_conversation(
               asked, {.chat = chat_.chat, .system = options_.system, .program = chat_.program},
               *chat_.tokenizer)
        .ids;
  }
  if (!prompt.turns.empty())
    throw DataError(prompt.place + ": this is a conversation", "use --chat for conversations");
  std::vector<std::int32_t> ids = vocabulary_.text_start();
  const auto text = vocabulary_.encode(prompt.text, prompt.place);
  ids.insert(ids.end(), text.begin(), text.end());
  if (ids.empty())
    throw DataError(prompt.place + ": the prompt is empty", "give at least one character");
  return ids;
}

std::vector<std::int32_t> TextWriter::fitting(const Prompt& prompt) {
  std::vector<std::int32_t> ids = encode(prompt);
  const std::int64_t block = loaded_.instance->as<Gpt>().config().block_size;
  if (std::ssize(ids) > block)
    throw DataError(fmt::format("{}: a prompt of {} tokens, but the model has {} positions",
                                prompt.place, ids.size(), block),
                    "shorten the prompt");
  return ids;
}

void TextWriter::answer(std::span<Exchange> exchanges) {
  std::vector<Question> questions;
  for (const Exchange& exchange : exchanges) {
    questions.push_back({.prompt = exchange.ids, .choice = choice_});
    questions.back().choice.seed += static_cast<std::uint64_t>(exchange.sample);
  }
  std::vector<Utf8Stream> characters(exchanges.size());
  const auto add = [&](std::size_t i, const std::string& whole) {
    exchanges[i].text += whole;
    if (i == 0 && !options_.json) show(whole);
  };
  if (!options_.json) show(heading(exchanges[0]));
  Generator generator(*loaded_.instance);
  auto answers = generator.generate_together(
      questions, options_.tokens, [&](std::size_t i, std::int32_t token) {
        // A table of embeddings may have more rows than the vocabulary has tokens.
        if (vocabulary_.has(token)) add(i, characters[i].push(vocabulary_.piece(token)));
      });
  for (std::size_t i = 0; i < exchanges.size(); ++i) {
    add(i, characters[i].finish());
    exchanges[i].answer = std::move(answers[i]);
    if (options_.json)
      show(json_line(exchanges[i]));
    else
      show((i == 0 ? "" : heading(exchanges[i]) + exchanges[i].text) + "\n");
  }
  if (options_.timings && writes_) print_safely(stderr, "{}\n", generator.times().to_string());
}

std::string TextWriter::heading(const Exchange& exchange) const {
  std::string heading;
  if (several_)
    heading = fmt::format("--- prompt {}, sample {} ---\n", exchange.number, exchange.sample + 1);
  return options_.chat ? heading : heading + exchange.prompt->text;
}

std::vector<double> TextWriter::log_probabilities(const Exchange& exchange) const {
  const std::vector<std::int32_t> ids(exchange.answer.begin(), exchange.answer.end() - 1);
  if (std::ssize(ids) > loaded_.instance->as<Gpt>().config().block_size) return {};
  const std::vector<double> logits = Generator(*loaded_.instance).logits(ids);
  std::vector<double> made;
  if (logits.empty()) return made;
  const std::int64_t width = loaded_.instance->as<Gpt>().config().vocab_size;
  for (std::size_t at = exchange.ids.size(); at < exchange.answer.size(); ++at) {
    const auto row = logits.begin() + static_cast<std::ptrdiff_t>(at - 1) * width;
    const double largest = *std::max_element(row, row + width);
    double sum = 0;
    for (auto value = row; value != row + width; ++value) sum += std::exp(*value - largest);
    made.push_back(row[exchange.answer[at]] - largest - std::log(sum));
  }
  return made;
}

std::string TextWriter::json_line(const Exchange& exchange) const {
  const std::vector<std::int32_t>& ids = exchange.answer;
  nlohmann::ordered_json line;
  line["prompt"] = exchange.number;
  if (!exchange.prompt->id.empty()) line["id"] = exchange.prompt->id;
  line["sample"] = exchange.sample + 1;
  line["text"] = exchange.text;
  const auto begin = ids.begin() + std::ssize(exchange.ids);
  const bool stopped = std::count(choice_.stop.begin(), choice_.stop.end(), ids.back()) > 0;
  line["ids"] = std::vector<std::int32_t>(begin, ids.end() - (stopped ? 1 : 0));
  if (options_.log_probabilities) {
    std::vector<double> logs = log_probabilities(exchange);
    const bool known = !logs.empty();
    if (known && stopped) logs.pop_back();
    line["logprobs"] = known ? nlohmann::ordered_json(logs) : nlohmann::ordered_json(nullptr);
  }
  line["prompt_tokens"] = exchange.ids.size();
  line["finish"] = stopped ? "stop" : "length";
  return dumped(line) + "\n";
}

void TextWriter::show(const std::string& text) const {
  if (writes_) print_generated(text);
}

}  // namespace choir
