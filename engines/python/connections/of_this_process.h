// A connection that refuses in a child of fork (client/channel/fork.h).
#ifndef SEINE_ENGINES_PYTHON_CONNECTIONS_OF_THIS_PROCESS_H_
#define SEINE_ENGINES_PYTHON_CONNECTIONS_OF_THIS_PROCESS_H_

#include <memory>

#include "engines/python/connections/connection.h"

namespace seine::python {

// The same connection; in a child every call is FAILED_PRECONDITION, and its end does nothing.
std::shared_ptr<Connection> OfThisProcess(std::shared_ptr<Connection> connection);

}  // namespace seine::python

#endif  // SEINE_ENGINES_PYTHON_CONNECTIONS_OF_THIS_PROCESS_H_
