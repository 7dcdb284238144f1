import { createContext, useContext, type ReactNode } from "react";
import { WarrenClient } from "./client";

const Context = createContext<WarrenClient>(new WarrenClient());

/** Gives the hooks below it a client. Without one they call the page's own origin. */
export function WarrenProvider({ client, children }: { client: WarrenClient; children: ReactNode }) {
  return <Context value={client}>{children}</Context>;
}

/** Returns the client that hooks use. */
export function useWarren(): WarrenClient {
  return useContext(Context);
}
