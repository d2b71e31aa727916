#include "choir/data/on_bad.hpp"

#include "choir/core/error.hpp"

namespace choir {

OnBad on_bad_of(std::string_view name, std::string_view option) {
  if (name == "stop") return OnBad::stop;
  if (name == "skip") return OnBad::skip;
  throw DeckError(fmt::format("{} is '{}'", option, name), "stop or skip");
}

}  // namespace choir
