#pragma once
// choir generate RUN --audio FILE,... --prompt TEXT: answers of a model with audio input.
#include <string>

#include "choir/infer/token_choice.hpp"
#include "src/app/session.hpp"

namespace choir {

struct HearRequest {
  std::string checkpoint, prompt, precision, device = "auto";
  Arguments clips;  ///< sound files, in the order of their tags
  std::int64_t tokens = 200;
  TokenChoice choice;
  int tensor = 1;
  bool json = false;
};

/// Throws DeckError for a checkpoint without audio input, and if the clips do not match the tags
/// <|audio|> of the prompt (a prompt without tags gets them in front); DataError for files that are
/// not audio. Collective.
int generate_from_audio(MpiSession& session, const HearRequest& request);

}  // namespace choir
