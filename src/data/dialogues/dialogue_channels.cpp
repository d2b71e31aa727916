#include "src/data/dialogues/dialogue_channels.hpp"

#include <algorithm>
#include <cmath>
#include <filesystem>

#include "choir/core/error.hpp"
#include "src/core/file.hpp"
#include "src/core/json_value.hpp"
#include "src/core/text.hpp"

namespace choir {

std::int64_t FrameClock::samples(double seconds) const {
  return static_cast<std::int64_t>(std::floor(seconds * sample_rate + 0.5));
}

void DialogueControls::check(std::int64_t vocab_size) const {
  if (pad == bos || pad == eos || bos == eos)
    throw DeckError(
        fmt::format("the tokens of padding, BOS and EOS are {}, {} and {}", pad, bos, eos),
        "they must differ: else every frame of silence begins or ends a turn");
  for (const std::int32_t id : {pad, bos, eos})
    if (id < 0 || id >= vocab_size)
      throw DeckError(fmt::format("token {} of padding, BOS or EOS is not in a vocabulary of {}",
                                  id, vocab_size));
}

TextChannel text_channel(std::span<const FrameTurn> turns, std::int64_t frames,
                         const DialogueControls& controls) {
  TextChannel channel;
  channel.tokens.assign(static_cast<std::size_t>(frames), controls.pad);
  for (std::size_t i = 0; i < turns.size(); ++i) {
    const FrameTurn& turn = turns[i];
    CHOIR_CHECK(turn.begin >= 0 && (i == 0 || turns[i - 1].begin <= turn.begin),
                "turn {} begins at frame {}", i, turn.begin);
    std::int64_t end = turn.end;
    if (i + 1 < turns.size()) end = std::min(end, turns[i + 1].begin - 1);
    const std::int64_t room =
        std::clamp<std::int64_t>(std::min(end, frames) - turn.begin, 0, std::ssize(turn.ids) + 1);
    const std::int64_t lost = std::ssize(turn.ids) - std::max<std::int64_t>(room - 1, 0);
    channel.cut += lost;
    if (lost > channel.worst_cut) {
      channel.worst_cut = lost;
      channel.worst = static_cast<std::int64_t>(i);
    }
    if (room == 0) continue;
    const auto at = channel.tokens.begin() + turn.begin;
    *at = controls.bos;
    std::copy_n(turn.ids.begin(), room - 1, at + 1);
    if (end < frames) channel.tokens[static_cast<std::size_t>(end)] = controls.eos;
  }
  return channel;
}

std::vector<FrameTurn> turns_of(std::span<const std::int32_t> channel,
                                const DialogueControls& controls) {
  std::vector<FrameTurn> turns;
  bool open = false;
  for (std::int64_t t = 0; t < std::ssize(channel); ++t) {
    const std::int32_t id = channel[static_cast<std::size_t>(t)];
    if (open && (id == controls.bos || id == controls.eos)) {
      turns.back().end = t;
      open = false;
    }
    if (id == controls.bos) {
      turns.push_back({.begin = t, .end = std::ssize(channel), .ids = {}});
      open = true;
    } else if (open && id != controls.pad) {
      turns.back().ids.push_back(id);
    }
  }
  return turns;
}

void fill_dialogue_rows(std::span<const std::int32_t> text, std::span<const std::uint16_t> codes,
                        const DialogueControls& controls, const CodeControls& code_controls,
                        const DialogueRows& to) {
  const std::size_t rows = to.text.size(), books = rows == 0 ? 0 : to.codes.size() / rows;
  const std::size_t steps = text.empty() ? 0 : text.size() - 1;
  CHOIR_CHECK(steps <= rows && codes.size() >= text.size() * books,
              "a dialogue of {} frames with {} codes in {} rows of {}", text.size(), codes.size(),
              rows, books);
  std::copy_n(text.begin(), steps, to.text.begin());
  std::copy_n(text.begin() + (steps > 0), steps, to.text_targets.begin());
  for (std::size_t t = 0; t < steps; ++t)
    for (std::size_t k = 0; k < books; ++k) {
      const std::size_t at = t * books + k;
      const std::int32_t said = text[t] == controls.bos   ? code_controls.bos
                                : text[t] == controls.eos ? code_controls.eos
                                                          : static_cast<std::int32_t>(codes[at]);
      to.codes[at] = t == 0 ? code_controls.delay : to.code_targets[at - books];
      to.code_targets[at] = said;
    }
  const auto end = [](auto span, std::size_t from, std::int32_t value) {
    std::fill(span.begin() + static_cast<std::ptrdiff_t>(from), span.end(), value);
  };
  end(to.text, steps, 0);
  end(to.text_targets, steps, kNoTarget);
  end(to.codes, steps * books, 0);
  end(to.code_targets, steps * books, kNoTarget);
}

namespace {

DialogueForm form_of_json(const nlohmann::json& json) {
  DialogueForm form;
  form.units = json.at("units").get<std::string>();
  form.vocab_size = json.at("vocab_size").get<std::int64_t>();
  form.vocab_hash = std::stoull(json.at("vocabulary").get<std::string>(), nullptr, 16);
  form.controls = {json.at("pad").get<std::int32_t>(), json.at("bos").get<std::int32_t>(),
                   json.at("eos").get<std::int32_t>()};
  form.controls.check(form.vocab_size);
  return form;
}

}  // namespace

DialogueForm DialogueForm::read(const std::string& folder) {
  const std::string file = path(folder);
  if (!std::filesystem::exists(file))
    throw DataError(fmt::format("'{}' is not a folder of packed dialogues", folder),
                    "make one with `choir prepare dialogues`");
  try {
    return form_of_json(read_json(read_whole_file(file, kMostSettingsMiB), file));
  } catch (const std::exception& error) {
    throw DataError(fmt::format("'{}' is damaged: {}", file, plain_cause(error)),
                    "pack the dialogues again with `choir prepare dialogues`");
  }
}

nlohmann::ordered_json DialogueForm::json() const {
  nlohmann::ordered_json json;
  json["units"] = units;
  json["vocab_size"] = vocab_size;
  json["vocabulary"] = fmt::format("{:016x}", vocab_hash);
  json["pad"] = controls.pad;
  json["bos"] = controls.bos;
  json["eos"] = controls.eos;
  return json;
}

std::string DialogueMeaning::to_json() const {
  nlohmann::ordered_json of_codec, json;
  of_codec["hash"] = fmt::format("{:016x}", codec.hash);
  of_codec["sample_rate"] = codec.sample_rate;
  of_codec["frame_samples"] = codec.frame_samples;
  of_codec["codebooks"] = codec.codebooks;
  of_codec["codes_per_book"] = codec.codes_per_book;
  of_codec["silence"] = codec.silence;
  json["dialogues"] = {{"text", form.json()}, {"codec", of_codec}};
  json["tokenizer"] = tokenizer;
  return dumped(json);
}

DialogueMeaning DialogueMeaning::from_json(const std::string& text, const std::string& source) {
  if (text.empty())
    throw DataError(
        fmt::format("{} has no tokenizer and no codec: it was trained on data without them",
                    source),
        "train on dialogues that `choir prepare dialogues` made");
  DialogueMeaning meaning;
  try {
    const auto json = read_json(text, "the description of " + source);
    meaning.form = form_of_json(json.at("dialogues").at("text"));
    meaning.tokenizer = json.at("tokenizer").get<std::string>();
    const auto& codec = json.at("dialogues").at("codec");
    meaning.codec = {.hash = std::stoull(codec.at("hash").get<std::string>(), nullptr, 16),
                     .sample_rate = codec.at("sample_rate").get<int>(),
                     .frame_samples = codec.at("frame_samples").get<std::int64_t>(),
                     .codebooks = codec.at("codebooks").get<std::int64_t>(),
                     .codes_per_book = codec.at("codes_per_book").get<std::int64_t>(),
                     .silence = codec.at("silence").get<std::vector<std::uint16_t>>()};
  } catch (const std::exception& error) {
    throw DataError(fmt::format("{} has no valid description of a duplex model: {}", source,
                                plain_cause(error)));
  }
  return meaning;
}

std::uint64_t DialogueForm::hash() const {
  return fnv1a(fmt::format("dialogues {} {:016x} {} {} {} {}", units, vocab_hash, vocab_size,
                           controls.pad, controls.bos, controls.eos));
}

}  // namespace choir
