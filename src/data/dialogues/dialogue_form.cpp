#include "choir/data/dialogues/dialogue_form.hpp"

#include <filesystem>

#include "choir/core/error.hpp"
#include "choir/core/json_value.hpp"
#include "choir/core/text.hpp"
#include "src/data/posix_file.hpp"

namespace choir {

DialogueForm DialogueForm::read(const std::string& folder) {
  const std::string file = path(folder);
  if (!std::filesystem::exists(file))
    throw DataError(fmt::format("'{}' is no folder of packed dialogues", folder),
                    "make one with `choir prepare dialogues`");
  DialogueForm form;
  try {
    const auto json = parsed_json(read_whole_file(file));
    form.units = json.at("units").get<std::string>();
    form.vocab_size = json.at("vocab_size").get<std::int64_t>();
    form.vocab_hash = std::stoull(json.at("vocabulary").get<std::string>(), nullptr, 16);
    form.controls = {json.at("pad").get<std::int32_t>(), json.at("bos").get<std::int32_t>(),
                     json.at("eos").get<std::int32_t>()};
    form.controls.check(form.vocab_size);
  } catch (const std::exception& error) {
    throw DataError(fmt::format("'{}' is damaged: {}", file, error.what()),
                    "pack the dialogues again with `choir prepare dialogues`");
  }
  return form;
}

std::uint64_t DialogueForm::hash() const {
  return fnv1a(fmt::format("dialogues {} {:016x} {} {} {} {}", units, vocab_hash, vocab_size,
                           controls.pad, controls.bos, controls.eos));
}

}  // namespace choir
