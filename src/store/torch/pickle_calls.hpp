#pragma once
// What a pickle may name, and what calling it means: the only "functions" of a pickle are these,
// and they are data.
#include <string>
#include <string_view>
#include <vector>

#include "choir/store/torch/pickle.hpp"

namespace choir {

/// "collections OrderedDict" and the like.
bool pickle_may_name(std::string_view global);

/// The value of calling `global` with these arguments. StorageError that begins with `what`.
PickleValue pickle_call(const std::string& global, const std::vector<const PickleValue*>& arguments,
                        const std::string& what);

/// The storage that a persistent id names.
PickleValue pickle_storage(const PickleValue& id, const std::string& what);

}  // namespace choir
