#pragma once
// What bad data do to a run.
#include <string_view>

namespace choir {

/// A bad utterance or recording ends the run, or is left out, counted and named.
enum class OnBad { stop, skip };
/// Throws DeckError for a name that is none of "stop skip"; `option`: what the user wrote it for,
/// "data.on_bad" or "--on-bad".
OnBad on_bad_of(std::string_view name, std::string_view option);

}  // namespace choir
