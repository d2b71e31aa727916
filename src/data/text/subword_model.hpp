#pragma once
// SentencePiece models: opened from their bytes, trained in process. Without the library every
// function here throws and names the package.
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "src/data/text/text_units_model.hpp"

namespace choir {

inline constexpr const char* kSubwordKind = "sentencepiece";

/// `bytes`: a serialised ModelProto, as in SentencePiece's .model files.
std::shared_ptr<const UnitModel> open_subword_model(std::string bytes, const std::string& source);
/// What its to_json() wrote: {"kind":"sentencepiece","size":N,"hash":"...","model":"base64"}.
std::shared_ptr<const UnitModel> subword_model_from_json(const nlohmann::json& json,
                                                         const std::string& source);
std::shared_ptr<const UnitModel> train_subword_model(const UnitTraining& training,
                                                     const std::vector<std::string>& sentences);

}  // namespace choir
