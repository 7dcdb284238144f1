import { StrictMode } from "react";
import { createRoot } from "react-dom/client";
import { WarrenProvider } from "warren-react";
import { client } from "./api";
import { App } from "./app";
import "./styles/base.css";
import "./styles/components.css";
import "./styles/pages.css";

const root = document.getElementById("root");
if (root !== null) {
  createRoot(root).render(
    <StrictMode>
      <WarrenProvider client={client}>
        <App />
      </WarrenProvider>
    </StrictMode>,
  );
}
