#include "src/data/dialogues/dialogue_form.hpp"

#include <filesystem>

#include "choir/core/error.hpp"
#include "src/core/file.hpp"
#include "src/core/json_value.hpp"
#include "src/core/text.hpp"

namespace choir {

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
