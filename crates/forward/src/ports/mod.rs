//! Software ports of inlane's own: captures, generators, checkers, and wrappers around any port.
