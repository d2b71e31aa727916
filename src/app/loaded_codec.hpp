#pragma once
// A trained codec beside another model: every rank has a whole one.
#include <memory>
#include <string>

#include "choir/models/codec/codec_coder.hpp"
#include "src/app/session.hpp"

namespace choir {

struct LoadedCodec {
  Workplace place;
  LoadedModel model;
  std::unique_ptr<CodecCoder> coder;
};
/// Collective. A checkpoint or run directory, in fp32 unless `precision` says otherwise, on the
/// device "auto", "cpu" or "cuda". DeckError for a model of another family.
std::unique_ptr<LoadedCodec> load_codec(MpiSession& session, const std::string& path,
                                        const std::string& device,
                                        const std::string& precision = "fp32");

}  // namespace choir
