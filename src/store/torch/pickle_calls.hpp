#pragma once
// The globals that a pickle may name, and the results of calling them. These are the only
// "functions" of a pickle, and they are data.
#include <string>
#include <string_view>
#include <vector>

#include "choir/store/torch/pickle.hpp"

namespace choir {

/// True for the known globals, such as "collections OrderedDict".
bool pickle_may_name(std::string_view global);

/// The result of calling `global` with these arguments. Throws a StorageError that begins with
/// `what`.
PickleValue pickle_call(const std::string& global, const std::vector<const PickleValue*>& arguments,
                        const std::string& what);

/// The storage that a persistent id names.
PickleValue pickle_storage(const PickleValue& id, const std::string& what);

}  // namespace choir
