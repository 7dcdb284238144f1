import { Component, type ReactNode } from "react";
import { ErrorNote } from "./feedback";

/** Shows what went wrong in a page instead of an empty window. */
export class Boundary extends Component<{ children: ReactNode }, { error: Error | null }> {
  override state: { error: Error | null } = { error: null };

  static getDerivedStateFromError(error: Error) {
    return { error };
  }

  override render() {
    const { error } = this.state;
    if (error === null) return this.props.children;
    return (
      <ErrorNote
        title="This page has a defect"
        error={error}
        action={{ label: "Show the page again", run: () => this.setState({ error: null }) }}
      />
    );
  }
}
